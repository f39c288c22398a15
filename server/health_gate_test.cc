#include "server/health_gate.h"

#include <grpcpp/create_channel.h>
#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/health_check_service_interface.h>
#include <grpcpp/security/credentials.h>
#include <grpcpp/security/server_credentials.h>
#include <grpcpp/server.h>
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/slice.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "server/callback_queue.h"

namespace ithaca::server {
namespace {

TEST(HealthGateTest, TheFirstAnswerIsTheFirstThatWasSet) {
  KeepCallbackQueue();
  grpc::EnableDefaultHealthCheckService(true);
  HealthGate gate;
  grpc::CallbackGenericService other;  // a server needs a service of its own
  grpc::ServerBuilder builder;
  builder.RegisterCallbackGenericService(&other);
  int port = 0;
  builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(),
                           &port);
  gate.AddTo(&builder);
  const std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  ASSERT_NE(server, nullptr);

  grpc::GenericStub stub(grpc::CreateChannel(
      "127.0.0.1:" + std::to_string(port), grpc::InsecureChannelCredentials()));
  grpc::ClientContext context;
  context.set_wait_for_ready(true);
  const grpc::Slice whole_server("");
  const grpc::ByteBuffer request(&whole_server, 1);
  grpc::ByteBuffer response;
  grpc::Status status;
  absl::Notification answered;
  stub.UnaryCall(&context, "/grpc.health.v1.Health/Check", grpc::StubOptions(),
                 &request, &response, [&](grpc::Status ended) {
                   status = std::move(ended);
                   answered.Notify();
                 });
  // Time for gRPC's own word, SERVING, if it were let through.
  EXPECT_FALSE(
      answered.WaitForNotificationWithTimeout(absl::Milliseconds(200)));
  server->GetHealthCheckService()->SetServingStatus("", false);
  gate.Open();
  answered.WaitForNotification();
  ASSERT_TRUE(status.ok()) << status.error_message();
  grpc::Slice slice;
  ASSERT_TRUE(response.DumpToSingleSlice(&slice).ok());
  // HealthCheckResponse: status = NOT_SERVING.
  EXPECT_EQ(std::string(slice.begin(), slice.end()), "\x08\x02");
}

}  // namespace
}  // namespace ithaca::server
