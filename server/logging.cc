#include "server/logging.h"

#include <spdlog/formatter.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/time.h"
#include "server/utf8.h"

namespace ithaca::server {

namespace {

// The fields of the line that this thread is writing. spdlog formats in the
// thread that logs, so that they need not travel inside its message.
thread_local const std::initializer_list<LogField>* current_fields = nullptr;

void AppendEscaped(std::string_view text, std::string* out) {
  for (const char c : text) {
    switch (c) {
      case '"':
      case '\\':
        out->push_back('\\');
        out->push_back(c);
        break;
      case '\n':
        out->append("\\n");
        break;
      case '\r':
        out->append("\\r");
        break;
      case '\t':
        out->append("\\t");
        break;
      default:
        if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) {
          absl::StrAppendFormat(out, "\\u%04x", static_cast<int>(c));
        } else {
          out->push_back(c);
        }
    }
  }
}

void AppendQuoted(std::string_view text, std::string* out) {
  out->push_back('"');
  AppendEscaped(
      IsValidUtf8(text) ? std::string(text) : ToValidUtf8(text, text.size()),
      out);
  out->push_back('"');
}

// Whether text reads as one word: then it needs no quotes in a text line.
bool IsWord(std::string_view text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
           (c >= '0' && c <= '9') || c == '_' || c == '-' || c == '.' ||
           c == ':' || c == '/';
  });
}

class LineFormatter : public spdlog::formatter {
 public:
  explicit LineFormatter(LogFormat format) : format_(format) {}

  void format(const spdlog::details::log_msg& msg,
              spdlog::memory_buf_t& dest) override {
    const std::string time =
        absl::FormatTime("%Y-%m-%dT%H:%M:%E3SZ", absl::FromChrono(msg.time),
                         absl::UTCTimeZone());
    const auto level = spdlog::level::to_string_view(msg.level);
    const std::string_view level_name(level.data(), level.size());
    const std::string_view message(msg.payload.data(), msg.payload.size());
    std::string line;
    if (format_ == LogFormat::kJson) {
      Json(time, level_name, message, &line);
    } else {
      Text(time, level_name, message, &line);
    }
    line.push_back('\n');
    dest.append(line.data(), line.data() + line.size());
  }

  std::unique_ptr<spdlog::formatter> clone() const override {
    return std::make_unique<LineFormatter>(format_);
  }

 private:
  static void Json(std::string_view time, std::string_view level,
                   std::string_view message, std::string* line) {
    line->append("{\"time\":");
    AppendQuoted(time, line);
    line->append(",\"level\":");
    AppendQuoted(level, line);
    line->append(",\"message\":");
    AppendQuoted(message, line);
    if (current_fields != nullptr) {
      for (const LogField& field : *current_fields) {
        line->push_back(',');
        AppendQuoted(field.name, line);
        line->push_back(':');
        if (field.quoted) {
          AppendQuoted(field.value, line);
        } else {
          line->append(field.value);
        }
      }
    }
    line->push_back('}');
  }

  static void Text(std::string_view time, std::string_view level,
                   std::string_view message, std::string* line) {
    line->append(time).append(" ").append(level).append(" ");
    AppendEscaped(message, line);
    if (current_fields == nullptr) return;
    for (const LogField& field : *current_fields) {
      line->append(" ").append(field.name).append("=");
      if (field.quoted && !IsWord(field.value)) {
        AppendQuoted(field.value, line);
      } else {
        line->append(field.value);
      }
    }
  }

  const LogFormat format_;
};

}  // namespace

LogField::LogField(std::string_view name, double value)
    : name(name),
      // JSON has no word for what is not finite.
      value(std::isfinite(value) ? absl::StrFormat("%.6g", value) : "null"),
      quoted(false) {}

absl::StatusOr<LogFormat> ParseLogFormat(std::string_view name) {
  if (name == "text") return LogFormat::kText;
  if (name == "json") return LogFormat::kJson;
  return absl::InvalidArgumentError(
      absl::StrCat("log format: expected text or json, got ",
                   absl::string_view(name.data(), name.size())));
}

absl::StatusOr<spdlog::level::level_enum> ParseLogLevel(std::string_view name) {
  using spdlog::level::level_enum;
  for (const auto& [known, level] :
       {std::pair<std::string_view, level_enum>{"debug", spdlog::level::debug},
        {"info", spdlog::level::info},
        {"warning", spdlog::level::warn},
        {"error", spdlog::level::err},
        {"off", spdlog::level::off}}) {
    if (name == known) return level;
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "log level: expected debug, info, warning, error or off, got ",
      absl::string_view(name.data(), name.size())));
}

void StartLogging(LogFormat format, spdlog::level::level_enum level,
                  spdlog::sink_ptr sink) {
  if (sink == nullptr) {
    sink = std::make_shared<spdlog::sinks::stderr_sink_mt>();
  }
  auto logger = std::make_shared<spdlog::logger>("", std::move(sink));
  logger->set_formatter(std::make_unique<LineFormatter>(format));
  logger->set_level(level);
  spdlog::set_default_logger(std::move(logger));
}

void Log(spdlog::level::level_enum level, std::string_view message,
         std::initializer_list<LogField> fields) {
  spdlog::logger* const logger = spdlog::default_logger_raw();
  if (!logger->should_log(level)) return;
  current_fields = &fields;
  logger->log(level, spdlog::string_view_t(message.data(), message.size()));
  current_fields = nullptr;
}

}  // namespace ithaca::server
