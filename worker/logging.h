#ifndef ITHACA_WORKER_LOGGING_H_
#define ITHACA_WORKER_LOGGING_H_

#include <spdlog/formatter.h>

#include <cstdint>
#include <memory>
#include <string>

namespace ithaca {

enum class LogFormat : uint8_t { kText, kJson };

// Makes spdlog's default logger write one line an event to stderr, each with
// this worker's name:
//
//   2026-01-02T03:04:05.678Z info box/4711 joined
//   {"time":"2026-01-02T03:04:05.678Z","level":"info","worker":"box/4711",
//    "message":"joined"}
//
// level: "trace", "debug", "info", "warning", "error", "critical" or "off".
// Call it before threads log.
void StartLogging(LogFormat format, const std::string& level,
                  const std::string& worker);

// The lines' shape alone.
std::unique_ptr<spdlog::formatter> MakeLogFormatter(LogFormat format,
                                                    const std::string& worker);

}  // namespace ithaca

#endif  // ITHACA_WORKER_LOGGING_H_
