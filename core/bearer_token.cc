#include "core/bearer_token.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace ithaca {

namespace {

constexpr absl::string_view kScheme = "Bearer ";

bool SameInConstantTime(absl::string_view a, absl::string_view b) {
  if (a.size() != b.size()) return false;
  unsigned char difference = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    difference |= static_cast<unsigned char>(a[i] ^ b[i]);
  }
  return difference == 0;
}

bool IsOneWord(const std::string& text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), [](char c) {
    return absl::ascii_isgraph(static_cast<unsigned char>(c));
  });
}

}  // namespace

absl::StatusOr<BearerToken> BearerToken::Read(std::istream& file,
                                              std::string_view name) {
  const absl::string_view path(name.data(), name.size());
  if (!file) {
    return absl::NotFoundError(
        absl::StrCat("cannot read the token file ", path));
  }
  std::string token((std::istreambuf_iterator<char>(file)),
                    std::istreambuf_iterator<char>());
  absl::StripAsciiWhitespace(&token);
  if (!IsOneWord(token)) {
    return absl::InvalidArgumentError(
        absl::StrCat("the token file ", path,
                     " must hold one word of printable ASCII characters"));
  }
  return BearerToken(std::move(token));
}

std::string BearerToken::Authorization() const {
  return token_.empty() ? "" : absl::StrCat(kScheme, token_);
}

absl::Status BearerToken::CheckHeader(
    std::optional<std::string_view> authorization) const {
  if (token_.empty()) return absl::OkStatus();
  if (!authorization.has_value()) {
    return absl::UnauthenticatedError(
        "this server asks for a token: authorization: Bearer TOKEN");
  }
  absl::string_view sent(authorization->data(), authorization->size());
  if (!absl::StartsWithIgnoreCase(sent, kScheme)) {
    return absl::UnauthenticatedError("expected authorization: Bearer TOKEN");
  }
  sent.remove_prefix(kScheme.size());
  if (!SameInConstantTime(absl::StripLeadingAsciiWhitespace(sent), token_)) {
    return absl::UnauthenticatedError("the token is not this server's");
  }
  return absl::OkStatus();
}

}  // namespace ithaca
