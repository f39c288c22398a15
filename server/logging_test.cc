#include "server/logging.h"

#include <gtest/gtest.h>
#include <spdlog/sinks/ostream_sink.h>
#include <spdlog/spdlog.h>

#include <cmath>
#include <memory>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>

namespace ithaca::server {
namespace {

class LoggingTest : public ::testing::Test {
 protected:
  void Start(LogFormat format, spdlog::level::level_enum level) {
    StartLogging(format, level,
                 std::make_shared<spdlog::sinks::ostream_sink_mt>(out_));
  }

  std::ostringstream out_;
};

const char kNasty[] = "a\"b\\c\nd\te\x01 \xc3\xa9 \xff";

TEST_F(LoggingTest, JsonLinesParseWhateverTheValuesAre) {
  Start(LogFormat::kJson, spdlog::level::info);
  Log(spdlog::level::info, "call ended",
      {{"request_id", kNasty},
       {"seconds", 0.25},
       {"bytes", int64_t{12}},
       {"odd", std::nan("")}});
  const std::string line = out_.str();
  ASSERT_EQ(line.find('\n'), line.size() - 1);
  const auto json = nlohmann::json::parse(line);
  EXPECT_EQ(json["message"], "call ended");
  EXPECT_EQ(json["level"], "info");
  EXPECT_EQ(json["request_id"], "a\"b\\c\nd\te\x01 \xc3\xa9 ?");
  EXPECT_EQ(json["seconds"], 0.25);
  EXPECT_EQ(json["bytes"], 12);
  EXPECT_TRUE(json["odd"].is_null());
}

TEST_F(LoggingTest, TextLinesQuoteWhatIsNoWord) {
  Start(LogFormat::kText, spdlog::level::info);
  Log(spdlog::level::warn, "call ended",
      {{"request_id", "r-1"}, {"error", kNasty}, {"empty", ""}});
  const std::string line = out_.str();
  EXPECT_EQ(line.find('\n'), line.size() - 1);
  EXPECT_NE(line.find("warning call ended request_id=r-1 error=\"a\\\"b\\\\c"),
            std::string::npos)
      << line;
  EXPECT_NE(line.find(" empty=\"\""), std::string::npos);
}

TEST_F(LoggingTest, LinesBySpdlogItselfHaveTheSameForm) {
  Start(LogFormat::kJson, spdlog::level::info);
  Log(spdlog::level::info, "first", {{"request_id", "r"}});
  out_.str("");
  spdlog::info("two\nlines");
  const auto json = nlohmann::json::parse(out_.str());
  EXPECT_EQ(json["message"], "two\nlines");
  EXPECT_FALSE(json.contains("request_id"));
}

TEST_F(LoggingTest, LinesBelowTheLevelAreNotWritten) {
  Start(LogFormat::kText, spdlog::level::warn);
  Log(spdlog::level::info, "call ended", {{"request_id", "r"}});
  EXPECT_EQ(out_.str(), "");
}

TEST_F(LoggingTest, UnknownNamesAreRefusedWithThoseThereAre) {
  EXPECT_EQ(*ParseLogFormat("json"), LogFormat::kJson);
  EXPECT_EQ(*ParseLogLevel("warning"), spdlog::level::warn);
  EXPECT_EQ(*ParseLogLevel("off"), spdlog::level::off);
  EXPECT_NE(ParseLogFormat("xml").status().message().find("json"),
            absl::string_view::npos);
  EXPECT_NE(ParseLogLevel("loud").status().message().find("debug"),
            absl::string_view::npos);
}

}  // namespace
}  // namespace ithaca::server
