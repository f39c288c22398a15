#include "server/status_mapping.h"

#include <gtest/gtest.h>

#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"

namespace ithaca::server {
namespace {

TEST(StatusMappingTest, EveryCodeKeepsItsNumberBothWays) {
  for (int code = 1; code <= 16; ++code) {
    const absl::Status status(static_cast<absl::StatusCode>(code), "why");
    const grpc::Status mapped = ToGrpc(status);
    EXPECT_EQ(mapped.error_code(), code);
    EXPECT_EQ(mapped.error_message(), "why");
    EXPECT_EQ(FromGrpc(mapped), status);
    EXPECT_EQ(CodeName(mapped.error_code()),
              absl::StatusCodeToString(status.code()));
  }
  EXPECT_TRUE(ToGrpc(absl::OkStatus()).ok());
  EXPECT_TRUE(FromGrpc(grpc::Status::OK).ok());
}

TEST(StatusMappingTest, RetryHintSurvivesOnTheStatus) {
  const absl::Status status = WithRetryHint(
      absl::UnavailableError("no ready group"), absl::Milliseconds(250));
  ASSERT_TRUE(RetryHint(status).has_value());
  EXPECT_EQ(*RetryHint(status), absl::Milliseconds(250));
  EXPECT_FALSE(RetryHint(absl::UnavailableError("x")).has_value());
}

TEST(StatusMappingTest, LongMessagesAreCutAndBytesMadePrintable) {
  EXPECT_LE(ToGrpc(absl::InternalError(std::string(100000, 'x')))
                .error_message()
                .size(),
            1024u);
  EXPECT_EQ(ToGrpc(absl::InternalError("a\xff\xfe")).error_message(), "a??");
}

}  // namespace
}  // namespace ithaca::server
