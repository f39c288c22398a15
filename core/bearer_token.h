#ifndef ITHACA_CORE_BEARER_TOKEN_H_
#define ITHACA_CORE_BEARER_TOKEN_H_

#include <istream>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace ithaca {

// The secret that whoever calls a process of the service must send, as
// `authorization: Bearer TOKEN` (RFC 6750). One that is empty asks for nothing.
// Immutable.
class BearerToken {
 public:
  BearerToken() = default;
  // REQUIRES: as what Read takes.
  explicit BearerToken(std::string token) : token_(std::move(token)) {}

  // The one word of a token file, space around it dropped; `name` is the
  // file's, for messages. Errors: kNotFound (it can't be read),
  // kInvalidArgument (it holds no word, several, or what no header may carry).
  static absl::StatusOr<BearerToken> Read(std::istream& file,
                                          std::string_view name);

  // The value of the header to send; empty if the token is.
  std::string Authorization() const;

  // Errors: kUnauthenticated (no token, or another). The time it takes does
  // not tell how much of a token is right.
  absl::Status CheckHeader(std::optional<std::string_view> authorization) const;

  // The same of a call's metadata, a multimap of strings of any kind.
  template <typename Metadata>
  absl::Status Check(const Metadata& metadata) const {
    const auto found = metadata.find("authorization");
    if (found == metadata.end()) return CheckHeader(std::nullopt);
    return CheckHeader(
        std::string_view(found->second.data(), found->second.size()));
  }

 private:
  std::string token_;
};

}  // namespace ithaca

#endif  // ITHACA_CORE_BEARER_TOKEN_H_
