#include "worker/rank_server.h"

#include <gmock/gmock.h>
#include <grpcpp/create_channel.h>
#include <gtest/gtest.h>

#include <chrono>
#include <string>

#include "proto/ithaca/internal/v1/worker.grpc.pb.h"

namespace ithaca {
namespace {

using internal::v1::RankService;

// Answers one method, so that a call tells whether it got here.
class Answering : public RankService::Service {
 public:
  grpc::Status DetachRegion(grpc::ServerContext* /*context*/,
                            const internal::v1::DetachRegionRequest* request,
                            internal::v1::DetachRegionResponse*) override {
    return {grpc::StatusCode::ABORTED, std::to_string(request->region_id())};
  }
};

grpc::Status Call(const std::string& address) {
  const auto stub = RankService::NewStub(
      grpc::CreateChannel(address, grpc::InsecureChannelCredentials()));
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() +
                       std::chrono::seconds(20));
  internal::v1::DetachRegionRequest request;
  request.set_region_id(42);
  internal::v1::DetachRegionResponse response;
  return stub->DetachRegion(&context, request, &response);
}

TEST(RankServerTest, ServesAtThePortAndAtTheSocket) {
  Answering service;
  const auto started = StartRankServer("127.0.0.1:0", &service);
  ASSERT_TRUE(started.ok()) << started.status();
  for (const std::string& address :
       {"127.0.0.1:" + std::to_string(started->port), started->local_socket}) {
    const grpc::Status status = Call(address);
    EXPECT_EQ(status.error_code(), grpc::StatusCode::ABORTED)
        << address << ": " << status.error_message();
    EXPECT_EQ(status.error_message(), "42") << address;
  }
}

TEST(RankServerTest, TwoServersHaveSocketsOfTheirOwn) {
  Answering service;
  const auto one = StartRankServer("127.0.0.1:0", &service);
  const auto other = StartRankServer("127.0.0.1:0", &service);
  ASSERT_TRUE(one.ok() && other.ok());
  EXPECT_NE(one->local_socket, other->local_socket);
}

TEST(RankServerTest, APortThatIsTakenIsUnavailable) {
  Answering service;
  const auto first = StartRankServer("127.0.0.1:0", &service);
  ASSERT_TRUE(first.ok());
  const auto second =
      StartRankServer("127.0.0.1:" + std::to_string(first->port), &service);
  EXPECT_EQ(second.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(second.status().message()),
              ::testing::HasSubstr(std::to_string(first->port)));
}

}  // namespace
}  // namespace ithaca
