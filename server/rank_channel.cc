#include "server/rank_channel.h"

#include <grpcpp/create_channel.h>
#include <grpcpp/security/credentials.h>
#include <grpcpp/support/client_interceptor.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "server/grpc_arguments.h"

namespace ithaca::server {

namespace {

namespace ge = grpc::experimental;

// gRPC lets no credentials of calls travel on an insecure channel; this adds
// the header by itself, so that no caller can forget it.
class AuthorizationInterceptor : public ge::Interceptor {
 public:
  explicit AuthorizationInterceptor(const std::string& authorization)
      : authorization_(authorization) {}

  void Intercept(ge::InterceptorBatchMethods* methods) override {
    if (methods->QueryInterceptionHookPoint(
            ge::InterceptionHookPoints::PRE_SEND_INITIAL_METADATA)) {
      methods->GetSendInitialMetadata()->emplace("authorization",
                                                 authorization_);
    }
    methods->Proceed();
  }

 private:
  const std::string authorization_;
};

class AuthorizationInterceptorFactory
    : public ge::ClientInterceptorFactoryInterface {
 public:
  explicit AuthorizationInterceptorFactory(std::string authorization)
      : authorization_(std::move(authorization)) {}

  ge::Interceptor* CreateClientInterceptor(ge::ClientRpcInfo*) override {
    return new AuthorizationInterceptor(authorization_);
  }

 private:
  const std::string authorization_;
};

}  // namespace

std::shared_ptr<grpc::Channel> MakeRankChannel(const GroupMember& member) {
  std::vector<std::unique_ptr<ge::ClientInterceptorFactoryInterface>>
      interceptors;
  if (!member.authorization.empty()) {
    interceptors.push_back(std::make_unique<AuthorizationInterceptorFactory>(
        member.authorization));
  }
  return ge::CreateCustomChannelWithInterceptors(
      member.local_socket.empty() ? member.address : member.local_socket,
      grpc::InsecureChannelCredentials(), RankChannelArguments(),
      std::move(interceptors));
}

}  // namespace ithaca::server
