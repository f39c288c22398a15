#include "worker/logging.h"

#include <spdlog/details/log_msg.h>

#include <nlohmann/json.hpp>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace ithaca {
namespace {

using ::testing::EndsWith;
using ::testing::MatchesRegex;

std::string Line(LogFormat format, const std::string& message) {
  spdlog::memory_buf_t buffer;
  MakeLogFormatter(format, "box/1")
      ->clone()
      ->format(spdlog::details::log_msg("ithaca", spdlog::level::info, message),
               buffer);
  return std::string(buffer.data(), buffer.size());
}

TEST(LoggingTest, ATextLineHasTimeLevelAndWorker) {
  const std::string line = Line(LogFormat::kText, "a message");
  EXPECT_THAT(line, MatchesRegex("[0-9T:.-]+Z info box/1 a message\n"));
}

TEST(LoggingTest, AJsonLineIsOneObject) {
  const std::string line = Line(LogFormat::kJson, "say \"hi\"\nto\xff all");
  ASSERT_THAT(line, EndsWith("}\n"));
  EXPECT_EQ(line.find('\n'), line.size() - 1);
  const auto json = nlohmann::json::parse(line);
  EXPECT_EQ(json["level"], "info");
  EXPECT_EQ(json["worker"], "box/1");
  EXPECT_EQ(json["message"], "say \"hi\"\nto\xEF\xBF\xBD all");
}

TEST(LoggingTest, NoMessageEndsATextLine) {
  const std::string line = Line(LogFormat::kText, "one\ntwo\r\n");
  EXPECT_EQ(line.find('\n'), line.size() - 1);
  EXPECT_EQ(line.find('\r'), std::string::npos);
}

}  // namespace
}  // namespace ithaca
