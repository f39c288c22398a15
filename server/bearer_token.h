#ifndef ITHACA_SERVER_BEARER_TOKEN_H_
#define ITHACA_SERVER_BEARER_TOKEN_H_

#include <grpcpp/support/string_ref.h>

#include <map>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace ithaca::server {

// What clients must send as `authorization: Bearer TOKEN`, if anything.
// Immutable.
class BearerToken {
 public:
  // No token is asked for.
  BearerToken() = default;
  // REQUIRES: !token.empty().
  explicit BearerToken(std::string token) : token_(std::move(token)) {}

  // The file's one line, spaces around it dropped. Errors: kNotFound (it can't
  // be read), kInvalidArgument (it is empty).
  static absl::StatusOr<BearerToken> FromFile(const std::string& path);

  // Errors: kUnauthenticated (no token, or another). The time it takes does
  // not tell how much of a token is right.
  absl::Status Check(
      const std::multimap<grpc::string_ref, grpc::string_ref>& metadata) const;

 private:
  std::string token_;
};

}  // namespace ithaca::server

#endif  // ITHACA_SERVER_BEARER_TOKEN_H_
