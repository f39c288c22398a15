#include "server/bearer_token.h"

#include <grpcpp/support/string_ref.h>

#include <fstream>
#include <iterator>
#include <map>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"

namespace ithaca::server {

namespace {

constexpr std::string_view kScheme = "Bearer ";

bool SameInConstantTime(std::string_view a, std::string_view b) {
  if (a.size() != b.size()) return false;
  unsigned char difference = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    difference |= static_cast<unsigned char>(a[i] ^ b[i]);
  }
  return difference == 0;
}

}  // namespace

absl::StatusOr<BearerToken> BearerToken::FromFile(const std::string& path) {
  std::ifstream file(path);
  if (!file) {
    return absl::NotFoundError(
        absl::StrCat("cannot read the token file ", path));
  }
  std::string token((std::istreambuf_iterator<char>(file)),
                    std::istreambuf_iterator<char>());
  absl::StripAsciiWhitespace(&token);
  if (token.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("the token file ", path, " is empty"));
  }
  return BearerToken(std::move(token));
}

absl::Status BearerToken::Check(
    const std::multimap<grpc::string_ref, grpc::string_ref>& metadata) const {
  if (token_.empty()) return absl::OkStatus();
  const auto found = metadata.find("authorization");
  if (found == metadata.end()) {
    return absl::UnauthenticatedError(
        "this server asks for a token: authorization: Bearer TOKEN");
  }
  const std::string_view sent(found->second.data(), found->second.size());
  if (!sent.starts_with(kScheme) ||
      !SameInConstantTime(sent.substr(kScheme.size()), token_)) {
    return absl::UnauthenticatedError("the token is not this server's");
  }
  return absl::OkStatus();
}

}  // namespace ithaca::server
