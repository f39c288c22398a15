#include "worker/logging.h"

#include <spdlog/details/log_msg.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include <nlohmann/json.hpp>
#include <string_view>

#include "absl/time/time.h"

namespace ithaca {
namespace {

class LineFormatter : public spdlog::formatter {
 public:
  LineFormatter(LogFormat format, std::string worker)
      : format_(format), worker_(std::move(worker)) {}

  void format(const spdlog::details::log_msg& message,
              spdlog::memory_buf_t& line) override {
    const std::string time =
        absl::FormatTime("%Y-%m-%dT%H:%M:%E3SZ", absl::FromChrono(message.time),
                         absl::UTCTimeZone());
    const auto level = spdlog::level::to_string_view(message.level);
    const std::string text(message.payload.data(), message.payload.size());
    std::string whole;
    if (format_ == LogFormat::kText) {
      whole = time + " " + std::string(level.data(), level.size()) + " " +
              worker_ + " " + text;
      // What a peer said must not end the line.
      for (char& c : whole) {
        if (static_cast<unsigned char>(c) < ' ') c = ' ';
      }
    } else {
      nlohmann::ordered_json json;
      json["time"] = time;
      json["level"] = std::string(level.data(), level.size());
      json["worker"] = worker_;
      json["message"] = text;
      whole = json.dump(-1, ' ', false,
                        nlohmann::ordered_json::error_handler_t::replace);
    }
    whole.push_back('\n');
    line.append(whole.data(), whole.data() + whole.size());
  }

  std::unique_ptr<spdlog::formatter> clone() const override {
    return std::make_unique<LineFormatter>(format_, worker_);
  }

 private:
  const LogFormat format_;
  const std::string worker_;
};

}  // namespace

std::unique_ptr<spdlog::formatter> MakeLogFormatter(LogFormat format,
                                                    const std::string& worker) {
  return std::make_unique<LineFormatter>(format, worker);
}

void StartLogging(LogFormat format, const std::string& level,
                  const std::string& worker) {
  auto logger = std::make_shared<spdlog::logger>(
      "ithaca", std::make_shared<spdlog::sinks::stderr_sink_mt>());
  logger->set_formatter(MakeLogFormatter(format, worker));
  logger->set_level(spdlog::level::from_str(level));
  logger->flush_on(spdlog::level::trace);
  spdlog::set_default_logger(std::move(logger));
}

}  // namespace ithaca
