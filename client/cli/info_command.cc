#include "client/cli/info_command.h"

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/cli/enum_flag.h"
#include "client/cli/exit_code.h"
#include "client/cli/text_table.h"

namespace ithaca::client {
namespace {

std::vector<std::string> PrecisionNames(const v1::GetServerInfoResponse& info) {
  std::vector<std::string> names;
  for (const int value : info.communication_precisions()) {
    names.push_back(
        EnumFlagName<v1::CommunicationPrecision>(kPrecisionPrefix, value));
  }
  return names;
}

std::vector<std::string> KernelNames(const v1::GetServerInfoResponse& info) {
  std::vector<std::string> names;
  for (const int value : info.kernels()) {
    names.push_back(EnumFlagName<v1::AttentionKernel>(kKernelPrefix, value));
  }
  return names;
}

nlohmann::ordered_json InfoJson(const std::string& address, bool serving,
                                const v1::GetServerInfoResponse& info) {
  auto groups = nlohmann::ordered_json::array();
  for (const v1::GroupInfo& group : info.groups()) {
    groups.push_back({
        {"name", group.name()},
        {"generation", group.generation()},
        {"world_size", group.world_size()},
        {"state", group.state()},
        {"workers", std::vector<std::string>(group.workers().begin(),
                                             group.workers().end())},
    });
  }
  return {
      {"address", address},
      {"serving", serving},
      {"version", info.version()},
      {"device", info.device()},
      {"max_message_bytes", info.max_message_bytes()},
      {"max_request_bytes", info.max_request_bytes()},
      {"shared_memory", info.shared_memory()},
      {"cuda_memory", info.cuda_memory()},
      {"communication_precisions", PrecisionNames(info)},
      {"kernels", KernelNames(info)},
      {"groups", groups},
  };
}

void PrintInfo(const std::string& address, bool serving,
               const v1::GetServerInfoResponse& info, std::ostream& out) {
  std::vector<std::string> planes = {"unary", "stream"};
  if (info.shared_memory()) planes.emplace_back("shared memory");
  if (info.cuda_memory()) planes.emplace_back("CUDA memory");
  out << "server      " << address << ", version " << info.version() << ", "
      << info.device() << '\n'
      << "health      " << (serving ? "serving" : "not serving") << '\n'
      << "limits      "
      << BytesText(static_cast<double>(info.max_message_bytes()))
      << " a message, "
      << BytesText(static_cast<double>(info.max_request_bytes())) << " a call\n"
      << "planes      " << absl::StrJoin(planes, ", ") << '\n'
      << "precisions  " << absl::StrJoin(PrecisionNames(info), ", ") << '\n'
      << "kernels     " << absl::StrJoin(KernelNames(info), ", ") << "\n\n";
  if (info.groups().empty()) {
    out << "no group: the coordinator waits for workers\n";
    return;
  }
  TextTable table;
  table.AddRow({"group", "state", "generation", "ranks", "workers"});
  for (const v1::GroupInfo& group : info.groups()) {
    table.AddRow({group.name(), group.state(), absl::StrCat(group.generation()),
                  absl::StrCat(group.world_size()),
                  absl::StrJoin(group.workers(), " ")});
  }
  table.Print(out);
}

}  // namespace

void AddInfoFlags(CLI::App* command, InfoFlags* flags) {
  AddConnectionFlags(command, &flags->connection);
  command->add_flag("--json", flags->json, "Print JSON");
}

int RunInfo(const InfoFlags& flags, std::ostream& out, std::ostream& err) {
  const auto client = Client::Connect(flags.connection.Options(err));
  if (!client.ok()) return ReportCallError(client.status(), err);
  const auto info = (*client)->GetServerInfo(flags.connection.Deadline());
  if (!info.ok()) return ReportCallError(info.status(), err);
  const auto serving =
      (*client)->IsServing(/*service=*/"", flags.connection.Deadline());
  if (!serving.ok()) return ReportCallError(serving.status(), err);
  if (flags.json) {
    out << InfoJson(flags.connection.address, *serving, *info).dump(2) << '\n';
  } else {
    PrintInfo(flags.connection.address, *serving, *info, out);
  }
  return *serving ? kSuccess : kTryLater;
}

}  // namespace ithaca::client
