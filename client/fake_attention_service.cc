#include "client/fake_attention_service.h"

#include <grpcpp/health_check_service_interface.h>
#include <grpcpp/security/server_credentials.h>
#include <grpcpp/server_builder.h>

#include <algorithm>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "client/fake_memory_service.h"

namespace ithaca::client {
namespace {

constexpr size_t kChunkBytes = size_t{1} << 20;

// The tensor that a chunk belongs to; null for the output.
v1::Tensor* TensorOf(v1::TensorRole role, v1::AttentionRequest* request) {
  switch (role) {
    case v1::TENSOR_ROLE_QUERY:
      return request->mutable_query();
    case v1::TENSOR_ROLE_KEY:
      return request->mutable_key();
    case v1::TENSOR_ROLE_VALUE:
      return request->mutable_value();
    default:
      return nullptr;
  }
}

}  // namespace

class FakeAttentionService::Service
    : public v1::AttentionService::CallbackService {
 public:
  Service(AttentionFunction attention, Options options,
          FakeMemoryService* memory)
      : attention_(std::move(attention)),
        options_(std::move(options)),
        memory_(memory) {}

  grpc::ServerUnaryReactor* Attention(
      grpc::CallbackServerContext* context, const v1::AttentionRequest* request,
      v1::AttentionResponse* response) override {
    grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
    reactor->Finish(Attend(context, *request, "unary", response));
    return reactor;
  }

  grpc::ServerBidiReactor<v1::StreamAttentionRequest,
                          v1::StreamAttentionResponse>*
  StreamAttention(grpc::CallbackServerContext* context) override {
    return new Stream(this, context);
  }

  grpc::ServerUnaryReactor* GetServerInfo(
      grpc::CallbackServerContext* context, const v1::GetServerInfoRequest*,
      v1::GetServerInfoResponse* response) override {
    response->set_version("fake");
    response->set_device("cpu");
    response->set_max_message_bytes(options_.max_message_bytes);
    response->set_max_request_bytes(uint64_t{4} << 30);
    response->set_shared_memory(options_.shared_memory);
    v1::GroupInfo* group = response->add_groups();
    group->set_name("group-0");
    group->set_generation(1);
    group->set_world_size(2);
    group->set_state("ready");
    group->add_workers("host/1");
    group->add_workers("host/2");
    response->add_kernels(v1::ATTENTION_KERNEL_MATH);
    response->add_communication_precisions(v1::COMMUNICATION_PRECISION_NATIVE);
    grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
    reactor->Finish(grpc::Status::OK);
    return reactor;
  }

  // Tensors out of their regions, the function, the output into its region.
  grpc::Status Attend(grpc::CallbackServerContext* context,
                      const v1::AttentionRequest& request,
                      const std::string& plane,
                      v1::AttentionResponse* response) {
    v1::AttentionRequest whole = request;
    bool in_region = request.has_output();
    for (v1::Tensor* tensor :
         {whole.mutable_query(), whole.mutable_key(), whole.mutable_value()}) {
      if (!tensor->has_memory()) continue;
      in_region = true;
      std::string bytes;
      grpc::Status status = memory_->Read(*context, tensor->memory(), &bytes);
      if (!status.ok()) return status;
      if (!bytes.empty()) tensor->set_data(std::move(bytes));
    }
    context->AddTrailingMetadata("ithaca-plane",
                                 in_region ? "shared_memory" : plane);
    grpc::Status status = attention_(context, whole, response);
    if (!status.ok() || !request.has_output()) return status;
    status =
        memory_->Write(*context, request.output(), response->output().data());
    response->mutable_output()->clear_source();
    return status;
  }

 private:
  class Stream : public grpc::ServerBidiReactor<v1::StreamAttentionRequest,
                                                v1::StreamAttentionResponse> {
   public:
    Stream(Service* service, grpc::CallbackServerContext* context)
        : service_(service), context_(context) {
      StartRead(&part_);
    }

    void OnReadDone(bool ok) override {
      if (!ok) {
        Answer();
        return;
      }
      if (part_.has_request()) {
        request_ = part_.request();
      } else {
        const v1::TensorChunk& chunk = part_.chunk();
        v1::Tensor* tensor = TensorOf(chunk.role(), &request_);
        if (tensor == nullptr || tensor->has_memory() ||
            chunk.offset() != tensor->data().size()) {
          Finish({grpc::StatusCode::INVALID_ARGUMENT, "chunk"});
          return;
        }
        tensor->mutable_data()->append(chunk.data());
      }
      StartRead(&part_);
    }

    void OnWriteDone(bool ok) override {
      ++next_;
      if (ok) {
        WriteNext();
      } else {
        Finish(grpc::Status::CANCELLED);
      }
    }

    void OnDone() override { delete this; }

   private:
    void Answer() {
      if (context_->IsCancelled()) {
        Finish(grpc::Status::CANCELLED);
        return;
      }
      v1::AttentionResponse response;
      status_ = service_->Attend(context_, request_, "stream", &response);
      if (status_.ok()) {
        const std::string data = response.output().data();
        response.mutable_output()->clear_source();
        *answer_.emplace_back().mutable_response() = response;
        for (size_t at = 0; at < data.size(); at += kChunkBytes) {
          v1::TensorChunk* chunk = answer_.emplace_back().mutable_chunk();
          chunk->set_role(v1::TENSOR_ROLE_OUTPUT);
          chunk->set_offset(at);
          chunk->set_data(data.substr(at, kChunkBytes));
        }
        if (service_->options_.edit_stream) {
          service_->options_.edit_stream(&answer_);
        }
      }
      WriteNext();
    }

    void WriteNext() {
      if (next_ == answer_.size()) {
        Finish(status_);
      } else {
        StartWrite(&answer_[next_]);
      }
    }

    Service* const service_;
    grpc::CallbackServerContext* const context_;
    v1::StreamAttentionRequest part_;
    v1::AttentionRequest request_;
    std::vector<v1::StreamAttentionResponse> answer_;
    size_t next_ = 0;
    grpc::Status status_;
  };

  const AttentionFunction attention_;
  const Options options_;
  FakeMemoryService* const memory_;
};

grpc::Status FakeAttentionService::Echo(grpc::CallbackServerContext*,
                                        const v1::AttentionRequest& request,
                                        v1::AttentionResponse* response) {
  response->set_request_id(request.request_id());
  *response->mutable_output() = request.query();
  v1::ExecutionReport* report = response->mutable_report();
  report->set_group("group-0");
  report->set_group_generation(1);
  report->set_world_size(2);
  report->set_queue_seconds(1e-4);
  report->set_total_seconds(1e-3);
  (*report->mutable_stage_seconds())["scatter"] = 2e-4;
  (*report->mutable_stage_seconds())["attention"] = 5e-4;
  return grpc::Status::OK;
}

FakeAttentionService::FakeAttentionService(AttentionFunction attention)
    : FakeAttentionService(std::move(attention), Options{}) {}

FakeAttentionService::FakeAttentionService(AttentionFunction attention,
                                           const Options& options)
    : memory_(std::make_unique<FakeMemoryService>()),
      service_(std::make_unique<Service>(std::move(attention), options,
                                         memory_.get())) {
  grpc::EnableDefaultHealthCheckService(true);
  grpc::ServerBuilder builder;
  builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(),
                           &port_);
  // A stream's chunks are not judged by the limit.
  builder.SetMaxReceiveMessageSize(static_cast<int>(
      std::max<uint64_t>(options.max_message_bytes, 2 * kChunkBytes)));
  builder.RegisterService(service_.get());
  builder.RegisterService(memory_.get());
  server_ = builder.BuildAndStart();
}

FakeAttentionService::~FakeAttentionService() {
  server_->Shutdown(std::chrono::system_clock::now());
}

std::string FakeAttentionService::address() const {
  return absl::StrCat("127.0.0.1:", port_);
}

}  // namespace ithaca::client
