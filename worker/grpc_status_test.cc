#include "worker/grpc_status.h"

#include <string>

#include "gtest/gtest.h"

namespace ithaca {
namespace {

TEST(GrpcStatusTest, EveryCodeSurvivesTheRoundTrip) {
  for (int code = 0; code <= 16; ++code) {
    const absl::Status status(static_cast<absl::StatusCode>(code),
                              code == 0 ? "" : "why");
    EXPECT_EQ(ToGrpc(status).error_code(), code);
    EXPECT_EQ(FromGrpc(ToGrpc(status)), status);
  }
}

TEST(GrpcStatusTest, ALongMessageIsCut) {
  const absl::Status status = absl::InternalError(std::string(100000, 'x'));
  EXPECT_EQ(ToGrpc(status).error_message().size(), 1024u);
}

}  // namespace
}  // namespace ithaca
