#include "client/cli/exit_code.h"

#include "absl/strings/str_cat.h"
#include "client/attention_client.h"

namespace ithaca::client {
namespace {

bool MayPass(absl::StatusCode code) {
  return code == absl::StatusCode::kUnavailable ||
         code == absl::StatusCode::kDeadlineExceeded ||
         code == absl::StatusCode::kResourceExhausted ||
         code == absl::StatusCode::kAborted;
}

std::string Advice(const absl::Status& status) {
  if (const auto delay = RetryAfter(status); delay.has_value()) {
    return absl::StrCat("the server asks to try again after ",
                        absl::FormatDuration(*delay));
  }
  switch (status.code()) {
    case absl::StatusCode::kUnavailable:
      return "is a coordinator running, and is its group ready? `ithaca info` "
             "shows it; --address (or ITHACA_ADDRESS) says where it is";
    case absl::StatusCode::kUnauthenticated:
      return "give the server's token with --token or ITHACA_TOKEN";
    case absl::StatusCode::kDeadlineExceeded:
      return "allow more time with --timeout-seconds";
    case absl::StatusCode::kUnimplemented:
      return "`ithaca info` shows what this server can do";
    default:
      return "";
  }
}

}  // namespace

ExitCode ReportCallError(const absl::Status& status, std::ostream& err) {
  err << "ithaca: " << absl::StatusCodeToString(status.code()) << ": "
      << status.message() << '\n';
  if (const std::string advice = Advice(status); !advice.empty()) {
    err << "  " << advice << '\n';
  }
  return MayPass(status.code()) ? kTryLater : kRefused;
}

}  // namespace ithaca::client
