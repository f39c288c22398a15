"""Leases and regions as a coordinator keeps them, for the fake server.

Shared memory is opened by its name. CUDA memory is looked up in
`cuda_memory`, (device_uuid, handle) -> a bytearray that stands for it.
"""

import itertools
import threading

import grpc

from ithaca.v1 import memory_pb2 as pb


class FakeMemory:
    """Thread-safe.

    refuse_with: (StatusCode, message) for every registration.
    """

    def __init__(self):
        self.refuse_with = None
        self.cuda_memory = {}
        self.registrations = 0
        self._lock = threading.Lock()
        self._numbers = itertools.count()
        self._ends = {}  # lease -> event that ends its stream
        self.regions = {}  # name -> (lease, object name or CUDA key)

    @property
    def leases(self):
        return list(self._ends)

    def handler(self):
        def unary(behaviour, request, response):
            return grpc.unary_unary_rpc_method_handler(
                behaviour, request.FromString, response.SerializeToString
            )

        return grpc.method_handlers_generic_handler(
            "ithaca.v1.MemoryService",
            {
                "KeepLease": grpc.unary_stream_rpc_method_handler(
                    self._keep,
                    pb.KeepLeaseRequest.FromString,
                    pb.KeepLeaseResponse.SerializeToString,
                ),
                "RegisterSharedMemory": unary(
                    self._register_shared,
                    pb.RegisterSharedMemoryRequest,
                    pb.RegisterMemoryResponse,
                ),
                "RegisterCudaMemory": unary(
                    self._register_cuda,
                    pb.RegisterCudaMemoryRequest,
                    pb.RegisterMemoryResponse,
                ),
                "UnregisterMemory": unary(
                    self._unregister,
                    pb.UnregisterMemoryRequest,
                    pb.UnregisterMemoryResponse,
                ),
            },
        )

    def end_leases(self):
        """As a coordinator that is started anew."""
        for end in list(self._ends.values()):
            end.set()

    def lose_leases(self):
        """The same, without telling the clients."""
        with self._lock:
            self.regions.clear()
            self._ends.clear()

    def read(self, slice_, context):
        """The slice's bytes."""
        kind, where = self._find(slice_, context)
        if kind == "cuda":
            memory = self.cuda_memory[where]
        else:
            with open(f"/dev/shm{where}", "rb") as file:
                memory = file.read()
        return memory[slice_.offset : slice_.offset + slice_.byte_size]

    def write(self, slice_, data, context):
        kind, where = self._find(slice_, context)
        if kind == "cuda":
            memory = self.cuda_memory[where]
            memory[slice_.offset : slice_.offset + slice_.byte_size] = data
            return
        with open(f"/dev/shm{where}", "r+b") as file:
            file.seek(slice_.offset)
            file.write(data)

    def plane(self, slice_):
        kind = self.regions[slice_.region][1][0]
        return "cuda_memory" if kind == "cuda" else "shared_memory"

    def _find(self, slice_, context):
        lease = dict(context.invocation_metadata()).get("ithaca-lease")
        with self._lock:
            owner, where = self.regions.get(slice_.region, (None, None))
        if owner is None or owner != lease:
            context.abort(grpc.StatusCode.NOT_FOUND, f"no region {slice_.region}")
        return where

    def _keep(self, request, context):
        lease, end = f"lease-{next(self._numbers)}", threading.Event()
        with self._lock:
            self._ends[lease] = end
        context.add_callback(end.set)
        yield pb.KeepLeaseResponse(lease=lease)
        end.wait()
        with self._lock:
            self._ends.pop(lease, None)
            for name in [n for n, (owner, _) in self.regions.items() if owner == lease]:
                del self.regions[name]

    def _register_shared(self, request, context):
        return self._register(request, ("shared", request.object_name), context)

    def _register_cuda(self, request, context):
        key = (request.device_uuid, request.ipc_handle)
        return self._register(request, ("cuda", key), context)

    def _register(self, request, where, context):
        if self.refuse_with is not None:
            context.abort(*self.refuse_with)
        with self._lock:
            known = request.lease in self._ends
            if known:
                assert request.region not in self.regions
                self.regions[request.region] = (request.lease, where)
                self.registrations += 1
        if not known:
            context.abort(grpc.StatusCode.NOT_FOUND, f"no lease {request.lease}")
        return pb.RegisterMemoryResponse()

    def _unregister(self, request, context):
        with self._lock:
            self.regions.pop(request.region, None)
        return pb.UnregisterMemoryResponse()
