"""A coordinator in the test's own process: the public API, numpy behind it."""

import concurrent.futures
import threading

import grpc
import ml_dtypes
import numpy as np

import fake_memory
import reference
from ithaca.v1 import attention_pb2 as pb

_DTYPES = {
    pb.DATA_TYPE_FLOAT32: np.dtype(np.float32),
    pb.DATA_TYPE_FLOAT16: np.dtype(np.float16),
    pb.DATA_TYPE_BFLOAT16: np.dtype(ml_dtypes.bfloat16),
}
_ORDERS = {
    pb.TOKEN_ORDER_IMAGE_FIRST: "image_first",
    pb.TOKEN_ORDER_TEXT_FIRST: "text_first",
}


class FakeServer:
    """Listens on `address` from construction to stop(). Thread-safe.

    requests: every attention request seen, by whichever plane, with its
    tensors' data. planes: how each came. metadata: that of the last call.
    fail_with: (StatusCode, message, trailing metadata) for every attention.
    edit_response: called on each response before it is sent. edit_stream: on
    the list of a stream's messages. info: changes to GetServerInfo's answer.
    echo: the output is the query, instead of attention.
    ready: what the health service says. release: calls wait until it is set.
    memory: its FakeMemory.
    """

    def __init__(self, max_message_bytes=-1, **info):
        self.info = info
        self.memory = fake_memory.FakeMemory()
        self.planes = []
        self.echo = False
        self.edit_stream = lambda messages: None
        self.requests = []
        self.metadata = {}
        self.fail_with = None
        self.edit_response = lambda response: None
        self.ready = True
        self.release = threading.Event()
        self.release.set()
        self.entered = threading.Semaphore(0)
        self._server = grpc.server(
            concurrent.futures.ThreadPoolExecutor(32),
            options=[
                ("grpc.max_receive_message_length", max_message_bytes),
                ("grpc.max_send_message_length", -1),
            ],
        )
        self._server.add_generic_rpc_handlers(
            (
                grpc.method_handlers_generic_handler(
                    "ithaca.v1.AttentionService",
                    {
                        "Attention": grpc.unary_unary_rpc_method_handler(
                            self._attention,
                            pb.AttentionRequest.FromString,
                            pb.AttentionResponse.SerializeToString,
                        ),
                        "StreamAttention": grpc.stream_stream_rpc_method_handler(
                            self._stream_attention,
                            pb.StreamAttentionRequest.FromString,
                            pb.StreamAttentionResponse.SerializeToString,
                        ),
                        "GetServerInfo": grpc.unary_unary_rpc_method_handler(
                            self._server_info,
                            pb.GetServerInfoRequest.FromString,
                            pb.GetServerInfoResponse.SerializeToString,
                        ),
                    },
                ),
                self.memory.handler(),
                grpc.method_handlers_generic_handler(
                    "grpc.health.v1.Health",
                    {"Check": grpc.unary_unary_rpc_method_handler(self._check)},
                ),
            )
        )
        port = self._server.add_insecure_port("127.0.0.1:0")
        self.address = f"127.0.0.1:{port}"
        self._server.start()

    def stop(self):
        self.release.set()
        self.memory.end_leases()
        self._server.stop(grace=None).wait()

    def _attention(self, request, context, plane="unary"):
        for name in ("query", "key", "value"):
            tensor = getattr(request, name)
            if tensor.HasField("memory"):
                data = bytes(self.memory.read(tensor.memory, context))
                plane = self.memory.plane(tensor.memory)
                tensor.data = data  # takes the place of `memory`
        response = self._answer(request, context, plane)
        if request.HasField("output"):
            self.memory.write(request.output, response.output.data, context)
            response.output.ClearField("data")
        self.edit_response(response)
        return response

    def _stream_attention(self, parts, context):
        request = next(parts).request
        data = {"query": bytearray(), "key": bytearray(), "value": bytearray()}
        for part in parts:
            name = pb.TensorRole.Name(part.chunk.role)
            tensor = data[name.removeprefix("TENSOR_ROLE_").lower()]
            assert part.chunk.offset == len(tensor)
            tensor += part.chunk.data
        for name, tensor in data.items():
            getattr(request, name).data = bytes(tensor)
        response = self._answer(request, context, "stream")
        output = response.output.data
        response.output.ClearField("data")
        self.edit_response(response)
        messages = [pb.StreamAttentionResponse(response=response)]
        for at in range(0, len(output), 1000):
            chunk = pb.TensorChunk(
                role=pb.TENSOR_ROLE_OUTPUT, offset=at, data=output[at : at + 1000]
            )
            messages.append(pb.StreamAttentionResponse(chunk=chunk))
        self.edit_stream(messages)
        yield from messages

    def _answer(self, request, context, plane):
        self.requests.append(request)
        self.planes.append(plane)
        self.metadata = dict(context.invocation_metadata())
        self.entered.release()
        assert self.release.wait(60)
        context.set_trailing_metadata((("ithaca-plane", plane),))
        if self.fail_with is not None:
            code, message, metadata = self.fail_with
            context.set_trailing_metadata(metadata)
            context.abort(code, message)
        if self.echo:
            output = request.query.data
        else:
            output = self._compute(request, context).tobytes()
        shape = request.query.shape
        return pb.AttentionResponse(
            request_id=request.request_id,
            output=pb.Tensor(dtype=request.query.dtype, shape=shape, data=output),
            report=pb.ExecutionReport(
                group="fake",
                group_generation=1,
                world_size=2,
                communication_precision=pb.COMMUNICATION_PRECISION_NATIVE,
                head_schedule=pb.HEAD_SCHEDULE_FUSED,
                kernel=pb.ATTENTION_KERNEL_MATH,
                total_seconds=0.002,
                stage_seconds={"attention": 0.001},
                communication_bytes=64,
            ),
        )

    @staticmethod
    def _compute(request, context):
        arrays = {}
        for name in ("query", "key", "value"):
            tensor = getattr(request, name)
            dtype = _DTYPES[tensor.dtype]
            expected = int(np.prod(list(tensor.shape))) * dtype.itemsize
            if len(tensor.data) != expected:
                context.abort(
                    grpc.StatusCode.INVALID_ARGUMENT,
                    f"{name}.data has {len(tensor.data)} bytes: expected {expected}",
                )
            shape = list(tensor.shape)
            arrays[name] = np.frombuffer(tensor.data, dtype).reshape(
                shape if len(shape) == 4 else [1, *shape]
            )
        layout, options = request.layout, request.options
        return reference.attention(
            **arrays,
            text_tokens=layout.text_tokens,
            valid_text_tokens=list(layout.valid_text_tokens) or None,
            order=_ORDERS[layout.order],
            image_queries_only=layout.image_queries_only,
            softmax_scale=(
                options.softmax_scale if options.HasField("softmax_scale") else None
            ),
        )

    def _server_info(self, request, context):
        response = pb.GetServerInfoResponse(
            version="0.0.1",
            device="cpu",
            groups=[
                pb.GroupInfo(
                    name="fake",
                    generation=1,
                    world_size=2,
                    state="ready",
                    workers=["a/1", "a/2"],
                )
            ],
            max_message_bytes=1 << 30,
            communication_precisions=[
                pb.COMMUNICATION_PRECISION_NATIVE,
                pb.COMMUNICATION_PRECISION_FP8_E4M3,
            ],
            kernels=[pb.ATTENTION_KERNEL_MATH],
        )
        response.MergeFrom(pb.GetServerInfoResponse(**self.info))
        return response

    def _check(self, request, context):
        return b"\x08\x01" if self.ready else b"\x08\x02"
