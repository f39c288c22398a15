#ifndef ITHACA_SERVER_LOGGING_H_
#define ITHACA_SERVER_LOGGING_H_

#include <spdlog/common.h>
#include <spdlog/sinks/sink.h>

#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

// The process's log: one line an event, on stderr, through spdlog. A line is a
// fixed message and fields, so that programs can read it:
//
//   text  2026-01-02T03:04:05.678Z info call ended request_id=r1 code=OK
//   json  {"time":"...","level":"info","message":"call ended",
//          "request_id":"r1","code":"OK"}
//
// What a client sent is escaped in both: no value can end a line or a field.
// Lines that are logged with spdlog itself come out in the same form, without
// fields. Thread-safe.

namespace ithaca::server {

enum class LogFormat : uint8_t { kText, kJson };

struct LogField {
  LogField(std::string_view name, std::string_view value)
      : name(name), value(value), quoted(true) {}
  LogField(std::string_view name, const char* value)
      : LogField(name, std::string_view(value)) {}
  LogField(std::string_view name, int64_t value)
      : name(name), value(std::to_string(value)), quoted(false) {}
  LogField(std::string_view name, double value);

  std::string_view name;
  std::string value;
  bool quoted;  // a string, not a number
};

// Errors: kInvalidArgument, naming the values there are.
absl::StatusOr<LogFormat> ParseLogFormat(std::string_view name);
absl::StatusOr<spdlog::level::level_enum> ParseLogLevel(std::string_view name);

// Makes spdlog's default logger write this form to stderr, or to `sink` (for
// tests). Call it before threads log.
void StartLogging(LogFormat format, spdlog::level::level_enum level,
                  spdlog::sink_ptr sink = nullptr);

void Log(spdlog::level::level_enum level, std::string_view message,
         std::initializer_list<LogField> fields = {});

}  // namespace ithaca::server

#endif  // ITHACA_SERVER_LOGGING_H_
