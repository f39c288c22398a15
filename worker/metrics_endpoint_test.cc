#include "worker/metrics_endpoint.h"

#include <arpa/inet.h>
#include <sys/socket.h>
#include <unistd.h>

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace ithaca {
namespace {

using ::testing::HasSubstr;

// The whole answer to one GET.
std::string Get(int port, const std::string& path) {
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  std::string answer;
  if (connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)) ==
      0) {
    const std::string request = "GET " + path + " HTTP/1.0\r\n\r\n";
    if (write(fd, request.data(), request.size()) > 0) {
      char buffer[4096];
      ssize_t got = 0;
      while ((got = read(fd, buffer, sizeof(buffer))) > 0) {
        answer.append(buffer, static_cast<size_t>(got));
      }
    }
  }
  close(fd);
  return answer;
}

TEST(MetricsEndpointTest, ServesMetricsAndLiveness) {
  int scrapes = 0;
  auto endpoint = MetricsEndpoint::Start("127.0.0.1:0", [&] {
    return "some_metric " + std::to_string(++scrapes) + "\n";
  });
  ASSERT_TRUE(endpoint.ok()) << endpoint.status();
  const int port = (*endpoint)->port();
  EXPECT_THAT(Get(port, "/metrics"), HasSubstr("some_metric 1\n"));
  EXPECT_THAT(Get(port, "/metrics"), HasSubstr("some_metric 2\n"));
  EXPECT_THAT(Get(port, "/livez"), HasSubstr(" 200 OK"));
  EXPECT_THAT(Get(port, "/nothing"), HasSubstr(" 404 "));
}

TEST(MetricsEndpointTest, AnAddressThatIsNoneIsInvalid) {
  for (const char* address : {"", "host", "host:", "host:port", ":70000"}) {
    EXPECT_EQ(MetricsEndpoint::Start(address, [] { return std::string(); })
                  .status()
                  .code(),
              absl::StatusCode::kInvalidArgument)
        << address;
  }
}

TEST(MetricsEndpointTest, APortThatIsTakenIsUnavailable) {
  auto first =
      MetricsEndpoint::Start("127.0.0.1:0", [] { return std::string(); });
  ASSERT_TRUE(first.ok());
  const std::string address = "127.0.0.1:" + std::to_string((*first)->port());
  const absl::Status status =
      MetricsEndpoint::Start(address, [] { return std::string(); }).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(status.message()), HasSubstr(address));
}

}  // namespace
}  // namespace ithaca
