#include "client/fake_attention_service.h"

#include <grpcpp/health_check_service_interface.h>
#include <grpcpp/security/server_credentials.h>
#include <grpcpp/server_builder.h>

#include <utility>

#include "absl/strings/str_cat.h"

namespace ithaca::client {

class FakeAttentionService::Service
    : public v1::AttentionService::CallbackService {
 public:
  explicit Service(AttentionFunction attention)
      : attention_(std::move(attention)) {}

  grpc::ServerUnaryReactor* Attention(
      grpc::CallbackServerContext* context, const v1::AttentionRequest* request,
      v1::AttentionResponse* response) override {
    grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
    reactor->Finish(attention_(context, *request, response));
    return reactor;
  }

  grpc::ServerUnaryReactor* GetServerInfo(
      grpc::CallbackServerContext* context, const v1::GetServerInfoRequest*,
      v1::GetServerInfoResponse* response) override {
    response->set_version("fake");
    response->set_device("cpu");
    response->set_max_message_bytes(1 << 30);
    response->set_max_request_bytes(1 << 30);
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

 private:
  const AttentionFunction attention_;
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
    : service_(std::make_unique<Service>(std::move(attention))) {
  grpc::EnableDefaultHealthCheckService(true);
  grpc::ServerBuilder builder;
  builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(),
                           &port_);
  builder.SetMaxReceiveMessageSize(1 << 30);
  builder.SetMaxSendMessageSize(1 << 30);
  builder.RegisterService(service_.get());
  server_ = builder.BuildAndStart();
}

FakeAttentionService::~FakeAttentionService() {
  server_->Shutdown(std::chrono::system_clock::now());
}

std::string FakeAttentionService::address() const {
  return absl::StrCat("127.0.0.1:", port_);
}

}  // namespace ithaca::client
