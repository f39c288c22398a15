#include "server/bearer_token.h"

#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <string>

#include "absl/status/status.h"

namespace ithaca::server {
namespace {

using Metadata = std::multimap<grpc::string_ref, grpc::string_ref>;

TEST(BearerTokenTest, WithoutATokenEveryCallIsTaken) {
  EXPECT_TRUE(BearerToken().Check({}).ok());
  EXPECT_TRUE(
      BearerToken().Check(Metadata{{"authorization", "Bearer x"}}).ok());
}

TEST(BearerTokenTest, OnlyTheTokenItselfIsTaken) {
  const BearerToken token("secret");
  EXPECT_TRUE(token.Check(Metadata{{"authorization", "Bearer secret"}}).ok());
  for (const char* sent : {"Bearer secre", "Bearer secrets", "Bearer Secret",
                           "secret", "Basic secret", "Bearer ", ""}) {
    EXPECT_EQ(token.Check(Metadata{{"authorization", sent}}).code(),
              absl::StatusCode::kUnauthenticated)
        << sent;
  }
  EXPECT_EQ(token.Check({}).code(), absl::StatusCode::kUnauthenticated);
}

TEST(BearerTokenTest, IsReadFromAFile) {
  const std::string path = testing::TempDir() + "/token";
  std::ofstream(path) << " secret\n";
  const auto token = BearerToken::FromFile(path);
  ASSERT_TRUE(token.ok()) << token.status();
  EXPECT_TRUE(token->Check(Metadata{{"authorization", "Bearer secret"}}).ok());

  std::ofstream(path, std::ios::trunc) << "\n";
  EXPECT_EQ(BearerToken::FromFile(path).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(BearerToken::FromFile("/no/such/file").status().code(),
            absl::StatusCode::kNotFound);
}

}  // namespace
}  // namespace ithaca::server
