#include "core/bearer_token.h"

#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <sstream>
#include <string>

namespace ithaca {
namespace {

absl::StatusOr<BearerToken> Read(const std::string& text) {
  std::istringstream file(text);
  return BearerToken::Read(file, "FILE");
}

TEST(BearerTokenTest, WithoutATokenEveryCallIsTaken) {
  EXPECT_TRUE(BearerToken().CheckHeader(std::nullopt).ok());
  EXPECT_TRUE(BearerToken().CheckHeader("Bearer x").ok());
  EXPECT_EQ(BearerToken().Authorization(), "");
}

TEST(BearerTokenTest, OnlyTheTokenItselfIsTaken) {
  const BearerToken token("secret");
  EXPECT_TRUE(token.CheckHeader(token.Authorization()).ok());
  for (const char* sent : {"Bearer secre", "Bearer secrets", "Bearer Secret",
                           "secret", "Basic secret", "Bearer ", "Bearer", ""}) {
    EXPECT_EQ(token.CheckHeader(sent).code(),
              absl::StatusCode::kUnauthenticated)
        << sent;
  }
  EXPECT_EQ(token.CheckHeader(std::nullopt).code(),
            absl::StatusCode::kUnauthenticated);
}

// RFC 7235, section 2.1.
TEST(BearerTokenTest, TheSchemeMayBeInAnyCase) {
  const BearerToken token("secret");
  for (const char* sent :
       {"bearer secret", "BEARER secret", "bEaReR  secret"}) {
    EXPECT_TRUE(token.CheckHeader(sent).ok()) << sent;
  }
}

TEST(BearerTokenTest, IsFoundInACallsMetadata) {
  using Metadata = std::multimap<std::string, std::string>;
  const BearerToken token("secret");
  EXPECT_TRUE(token.Check(Metadata{{"authorization", "Bearer secret"}}).ok());
  EXPECT_FALSE(token.Check(Metadata{{"authorization", "Bearer other"}}).ok());
  EXPECT_FALSE(token.Check(Metadata{{"other", "Bearer secret"}}).ok());
}

TEST(BearerTokenTest, AFileHoldsOneWordThatAHeaderMayCarry) {
  const auto token = Read(" secret\n");
  ASSERT_TRUE(token.ok()) << token.status();
  EXPECT_EQ(token->Authorization(), "Bearer secret");
  for (const char* text :
       {"", "\n", "two words", "two\nlines", "caf\xc3\xa9"}) {
    EXPECT_EQ(Read(text).status().code(), absl::StatusCode::kInvalidArgument)
        << text;
  }
  std::ifstream missing("/no/such/file");
  EXPECT_EQ(BearerToken::Read(missing, "FILE").status().code(),
            absl::StatusCode::kNotFound);
}

}  // namespace
}  // namespace ithaca
