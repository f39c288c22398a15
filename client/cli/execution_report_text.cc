#include "client/cli/execution_report_text.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/cli/enum_flag.h"
#include "client/cli/text_table.h"

namespace ithaca::client {
namespace {

constexpr const char* kStages[] = {
    "scatter",   "pack",        "all_to_all",        "unpack",
    "attention", "output_pack", "output_all_to_all", "output_unpack",
    "gather",
};

std::string PrecisionName(int value) {
  return EnumFlagName<v1::CommunicationPrecision>(kPrecisionPrefix, value);
}

std::string ScheduleName(int value) {
  return EnumFlagName<v1::HeadSchedule>(kSchedulePrefix, value);
}

std::string KernelName(int value) {
  return EnumFlagName<v1::AttentionKernel>(kKernelPrefix, value);
}

}  // namespace

std::vector<std::pair<std::string, double>> OrderedStages(
    const v1::ExecutionReport& report) {
  std::map<std::string, double> left(report.stage_seconds().begin(),
                                     report.stage_seconds().end());
  std::vector<std::pair<std::string, double>> stages;
  for (const char* name : kStages) {
    const auto stage = left.find(name);
    if (stage == left.end()) continue;
    stages.push_back(*stage);
    left.erase(stage);
  }
  stages.insert(stages.end(), left.begin(), left.end());
  return stages;
}

double CoordinatorSeconds(const v1::ExecutionReport& report) {
  double seconds = report.total_seconds() - report.queue_seconds();
  for (const auto& stage : report.stage_seconds()) seconds -= stage.second;
  return std::max(seconds, 0.0);
}

void PrintReport(const v1::ExecutionReport& report, std::ostream& out) {
  out << "group     " << report.group() << ", generation "
      << report.group_generation() << ", " << report.world_size()
      << (report.world_size() == 1 ? " rank" : " ranks") << '\n'
      << "ran as    " << KernelName(report.kernel()) << " kernel, "
      << ScheduleName(report.head_schedule()) << " schedule, "
      << PrecisionName(report.communication_precision()) << " precision, "
      << BytesText(static_cast<double>(report.communication_bytes()))
      << " sent by a rank\n\n";
  TextTable table;
  const double total = report.total_seconds();
  const auto add = [&](const std::string& name, double seconds) {
    table.AddRow(
        {name, SecondsText(seconds),
         total > 0 ? absl::StrFormat("%.1f %%", 100 * seconds / total) : ""});
  };
  table.AddRow({"stage", "time", "share"});
  add("queue", report.queue_seconds());
  for (const auto& [name, seconds] : OrderedStages(report)) add(name, seconds);
  add("coordinator", CoordinatorSeconds(report));
  add("total", total);
  table.Print(out);
}

nlohmann::ordered_json ReportJson(const v1::ExecutionReport& report) {
  nlohmann::ordered_json stages = nlohmann::ordered_json::object();
  for (const auto& [name, seconds] : OrderedStages(report)) {
    stages[name] = seconds;
  }
  return {
      {"group", report.group()},
      {"group_generation", report.group_generation()},
      {"world_size", report.world_size()},
      {"communication_precision",
       PrecisionName(report.communication_precision())},
      {"head_schedule", ScheduleName(report.head_schedule())},
      {"kernel", KernelName(report.kernel())},
      {"queue_seconds", report.queue_seconds()},
      {"total_seconds", report.total_seconds()},
      {"coordinator_seconds", CoordinatorSeconds(report)},
      {"stage_seconds", stages},
      {"communication_bytes", report.communication_bytes()},
  };
}

}  // namespace ithaca::client
