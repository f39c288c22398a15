#include "tests/integration/stream_client.h"

#include <chrono>
#include <string>
#include <utility>

#include "ithaca/v1/attention.grpc.pb.h"

namespace ithaca {

StreamClient::StreamClient(v1::AttentionService::Stub* stub,
                           v1::AttentionRequest whole)
    : whole_(std::move(whole)) {
  context_.set_deadline(std::chrono::system_clock::now() +
                        std::chrono::seconds(120));
  stream_ = stub->StreamAttention(&context_);
}

void StreamClient::SendRequest() {
  v1::StreamAttentionRequest part;
  v1::AttentionRequest* const request = part.mutable_request();
  *request = whole_;
  for (v1::Tensor* tensor : {request->mutable_query(), request->mutable_key(),
                             request->mutable_value()}) {
    if (tensor->has_data()) tensor->clear_data();
  }
  stream_->Write(part);
}

void StreamClient::SendTensor(v1::TensorRole role, size_t chunk_bytes) {
  const v1::Tensor& tensor = role == v1::TENSOR_ROLE_QUERY ? whole_.query()
                             : role == v1::TENSOR_ROLE_KEY ? whole_.key()
                                                           : whole_.value();
  const std::string& data = tensor.data();
  v1::StreamAttentionRequest part;
  part.mutable_chunk()->set_role(role);
  for (size_t at = 0; at < data.size(); at += chunk_bytes) {
    part.mutable_chunk()->set_offset(at);
    part.mutable_chunk()->set_data(data.substr(at, chunk_bytes));
    if (!stream_->Write(part)) return;
  }
}

void StreamClient::HalfClose() { stream_->WritesDone(); }

void StreamClient::SendAll(size_t chunk_bytes) {
  SendRequest();
  for (const auto role :
       {v1::TENSOR_ROLE_QUERY, v1::TENSOR_ROLE_KEY, v1::TENSOR_ROLE_VALUE}) {
    SendTensor(role, chunk_bytes);
  }
  HalfClose();
}

grpc::Status StreamClient::Receive(v1::AttentionResponse* response) {
  v1::StreamAttentionResponse part;
  std::string output;
  bool in_order = true;
  while (stream_->Read(&part)) {
    if (part.has_response()) {
      *response = part.response();
    } else {
      in_order = in_order && part.chunk().role() == v1::TENSOR_ROLE_OUTPUT &&
                 part.chunk().offset() == output.size();
      output += part.chunk().data();
    }
  }
  if (!response->output().has_memory()) {
    response->mutable_output()->set_data(std::move(output));
  }
  const grpc::Status status = stream_->Finish();
  if (status.ok() && !in_order) {
    return {grpc::StatusCode::UNKNOWN, "the output's chunks are out of order"};
  }
  return status;
}

}  // namespace ithaca
