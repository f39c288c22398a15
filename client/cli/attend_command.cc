#include "client/cli/attend_command.h"

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "client/cli/execution_report_text.h"
#include "client/cli/exit_code.h"
#include "client/cli/random_call.h"
#include "client/cli/text_table.h"
#include "client/reference_attention.h"
#include "client/safetensors.h"

namespace ithaca::client {
namespace {

struct Verdict {
  OutputError error;
  double limit = 0;
  bool passed() const { return error.relative_l2 <= limit; }
};

absl::StatusOr<AttentionArguments> ReadCall(const AttendFlags& flags) {
  const auto tensors = ReadSafetensors(flags.input, {"query", "key", "value"});
  if (!tensors.ok()) return tensors.status();
  // The layout is not in the file: the flags say it.
  CallShape layout;
  layout.text_tokens = flags.call.text_tokens.value_or(0);
  layout.valid_text_tokens = flags.call.valid_text_tokens;
  layout.image_queries_only = flags.call.image_queries_only;
  if (flags.call.order) {
    layout.order = static_cast<v1::TokenOrder>(*flags.call.order);
  }
  return AttentionArguments{.query = (*tensors)[0].view(),
                            .key = (*tensors)[1].view(),
                            .value = (*tensors)[2].view(),
                            .layout = layout.Layout()};
}

std::string TensorText(const TensorView& tensor) {
  const std::string_view name = Name(tensor.dtype);
  return absl::StrCat(absl::string_view(name.data(), name.size()), " [",
                      absl::StrJoin(tensor.shape, ", "), "]");
}

absl::StatusOr<Verdict> Verify(const AttentionArguments& call,
                               const AttentionResult& result) {
  const auto error = CompareWithReference(call, result.output);
  if (!error.ok()) return error.status();
  return Verdict{
      .error = *error,
      .limit = RelativeL2Limit(call.query.dtype,
                               result.report.communication_precision())};
}

void PrintText(const AttentionArguments& call, const AttentionResult& result,
               double client_seconds, const std::optional<Verdict>& verdict,
               std::ostream& out) {
  out << "request   " << result.request_id << '\n'
      << "query     " << TensorText(call.query) << '\n'
      << "key       " << TensorText(call.key) << '\n'
      << "plane     " << Name(result.plane)
      << (result.plane_note.empty() ? "" : ": ") << result.plane_note << '\n';
  PrintReport(result.report, out);
  out << "\nseen by the client: " << SecondsText(client_seconds) << '\n';
  if (!verdict.has_value()) return;
  const OutputError& error = verdict->error;
  out << absl::StrFormat(
      "verify: relative L2 error %.3g, limit %.3g, over %d of %d rows: %s\n",
      error.relative_l2, verdict->limit, error.compared_rows, error.all_rows,
      verdict->passed() ? "right" : "WRONG");
}

nlohmann::ordered_json CallJson(const AttentionArguments& call,
                                const AttentionResult& result,
                                double client_seconds,
                                const std::optional<Verdict>& verdict) {
  nlohmann::ordered_json json = {
      {"request_id", result.request_id},     {"dtype", Name(call.query.dtype)},
      {"query_shape", call.query.shape},     {"key_shape", call.key.shape},
      {"plane", Name(result.plane)},         {"plane_note", result.plane_note},
      {"report", ReportJson(result.report)}, {"client_seconds", client_seconds},
  };
  if (verdict.has_value()) {
    json["verify"] = {
        {"relative_l2", verdict->error.relative_l2},
        {"limit", verdict->limit},
        {"compared_rows", verdict->error.compared_rows},
        {"all_rows", verdict->error.all_rows},
        {"passed", verdict->passed()},
    };
  }
  return json;
}

int ReportUsageError(const absl::Status& status, std::ostream& err) {
  err << "ithaca: " << status.message() << '\n';
  return kUsage;
}

}  // namespace

void AddAttendFlags(CLI::App* command, AttendFlags* flags) {
  AddConnectionFlags(command, &flags->connection);
  AddPlaneFlag(command, &flags->connection);
  AddCallFlags(command, &flags->call);
  command->add_option("--input", flags->input,
                      "Take query, key and value from a .safetensors file; "
                      "--text-tokens, --valid-text, --order and "
                      "--image-queries-only say its layout");
  command->add_option("--output", flags->output,
                      "Write the output to a .safetensors file");
  command->add_option("--request-id", flags->request_id,
                      "Name of the call in the server's logs");
  command->add_flag("--verify", flags->verify,
                    "Compare with attention by its definition, in float64; of "
                    "a large call a sample of rows, whose size is printed");
  command->add_flag("--json", flags->json, "Print JSON");
}

int RunAttend(const AttendFlags& flags, std::ostream& out, std::ostream& err) {
  if (!flags.input.empty() && flags.call.DescribesTensors()) {
    return ReportUsageError(
        absl::InvalidArgumentError(
            "--input brings its own tensors: leave out --batch, "
            "--image-tokens, --heads, --kv-heads, --head-dim and --dtype"),
        err);
  }
  auto call = flags.input.empty()
                  ? MakeRandomCall(flags.call.Shape(), flags.call.seed,
                                   flags.connection.LargestRequest())
                  : ReadCall(flags);
  if (!call.ok()) return ReportUsageError(call.status(), err);
  call->options = flags.call.Options();
  call->request_id = flags.request_id;

  const auto client = Client::Connect(flags.connection.Options(err));
  if (!client.ok()) return ReportCallError(client.status(), err);
  call->deadline = flags.connection.Deadline();
  const absl::Time start = absl::Now();
  const auto result = (*client)->Attention(*call);
  const double client_seconds = absl::ToDoubleSeconds(absl::Now() - start);
  if (!result.ok()) return ReportCallError(result.status(), err);

  if (!flags.output.empty()) {
    const absl::Status written =
        WriteSafetensors(flags.output, {{"output", result->output.view()}});
    if (!written.ok()) return ReportUsageError(written, err);
  }
  std::optional<Verdict> verdict;
  if (flags.verify) {
    const auto outcome = Verify(*call, *result);
    if (!outcome.ok()) return ReportCallError(outcome.status(), err);
    verdict = *outcome;
  }
  if (flags.json) {
    out << CallJson(*call, *result, client_seconds, verdict).dump(2) << '\n';
  } else {
    PrintText(*call, *result, client_seconds, verdict, out);
  }
  if (!verdict.has_value() || verdict->passed()) return kSuccess;
  err << "ithaca: the output is beyond its error limit\n";
  return kWrongNumbers;
}

}  // namespace ithaca::client
