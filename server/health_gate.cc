#include "server/health_gate.h"

#include <grpcpp/support/server_interceptor.h>

#include <memory>
#include <string_view>
#include <utility>
#include <vector>

namespace ithaca::server {

namespace {

namespace ge = grpc::experimental;

class Waiter : public ge::Interceptor {
 public:
  explicit Waiter(absl::Notification* opened) : opened_(opened) {}

  void Intercept(ge::InterceptorBatchMethods* methods) override {
    opened_->WaitForNotification();
    methods->Proceed();
  }

 private:
  absl::Notification* const opened_;
};

class WaiterFactory : public ge::ServerInterceptorFactoryInterface {
 public:
  explicit WaiterFactory(absl::Notification* opened) : opened_(opened) {}

  ge::Interceptor* CreateServerInterceptor(ge::ServerRpcInfo* info) override {
    constexpr std::string_view kHealth = "/grpc.health.v1.Health/";
    const bool waits = !opened_->HasBeenNotified() &&
                       std::string_view(info->method()).starts_with(kHealth);
    return waits ? new Waiter(opened_) : nullptr;
  }

 private:
  absl::Notification* const opened_;
};

}  // namespace

void HealthGate::AddTo(grpc::ServerBuilder* builder) {
  std::vector<std::unique_ptr<ge::ServerInterceptorFactoryInterface>> creators;
  creators.push_back(std::make_unique<WaiterFactory>(&opened_));
  builder->experimental().SetInterceptorCreators(std::move(creators));
}

}  // namespace ithaca::server
