#ifndef ITHACA_CLIENT_CLI_EXECUTION_REPORT_TEXT_H_
#define ITHACA_CLIENT_CLI_EXECUTION_REPORT_TEXT_H_

#include <nlohmann/json_fwd.hpp>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "ithaca/v1/attention.pb.h"

namespace ithaca::client {

// The report's stages in the order a call goes through them; stages that this
// build does not know come last, by name.
std::vector<std::pair<std::string, double>> OrderedStages(
    const ithaca::v1::ExecutionReport& report);

// What of a call is neither waiting nor a stage of the slowest rank: the
// coordinator's own time, in seconds. A lower bound, and no less than 0: each
// stage is that of its slowest rank, and stages overlap.
double CoordinatorSeconds(const ithaca::v1::ExecutionReport& report);

// Who ran the call and how, and each stage with its share of the total.
void PrintReport(const ithaca::v1::ExecutionReport& report, std::ostream& out);

// The same as JSON; names are the API's fields.
nlohmann::ordered_json ReportJson(const ithaca::v1::ExecutionReport& report);

}  // namespace ithaca::client

#endif  // ITHACA_CLIENT_CLI_EXECUTION_REPORT_TEXT_H_
