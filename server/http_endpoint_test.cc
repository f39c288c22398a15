#include "server/http_endpoint.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"

namespace ithaca::server {
namespace {

// The whole answer to one GET; empty if the connection was refused or reset.
std::string Get(int port, const std::string& path) {
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  std::string answer;
  if (connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)) ==
      0) {
    const std::string request = "GET " + path + " HTTP/1.0\r\n\r\n";
    // An endpoint that closes may leave a connection without an answer.
    const timeval patience{5, 0};
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
    send(fd, request.data(), request.size(), MSG_NOSIGNAL);
    char buffer[4096];
    for (ssize_t n; (n = read(fd, buffer, sizeof(buffer))) > 0;) {
      answer.append(buffer, static_cast<size_t>(n));
    }
  }
  close(fd);
  return answer;
}

HttpEndpoint::Handlers Handlers(const std::atomic<bool>* ready) {
  return {[ready] { return ready->load(); },
          [] { return std::string("ithaca_up 1\n"); }};
}

TEST(HttpEndpointTest, AnswersProbesAndScrapes) {
  std::atomic<bool> ready{false};
  const auto endpoint = HttpEndpoint::Start("127.0.0.1:0", Handlers(&ready));
  ASSERT_TRUE(endpoint.ok()) << endpoint.status();
  const int port = (*endpoint)->port();
  EXPECT_NE(Get(port, "/livez").find(" 200 "), std::string::npos);
  EXPECT_NE(Get(port, "/readyz").find(" 503 "), std::string::npos);
  ready = true;
  EXPECT_NE(Get(port, "/readyz").find(" 200 "), std::string::npos);
  EXPECT_NE(Get(port, "/metrics").find("\r\n\r\nithaca_up 1\n"),
            std::string::npos);
  EXPECT_NE(Get(port, "/").find(" 404 "), std::string::npos);
  EXPECT_NE(Get(port, "/metrics/x").find(" 404 "), std::string::npos);
}

TEST(HttpEndpointTest, APortInUseIsACleanErrorThatNamesTheAddress) {
  const std::atomic<bool> ready{true};
  const auto first = HttpEndpoint::Start("127.0.0.1:0", Handlers(&ready));
  ASSERT_TRUE(first.ok());
  const std::string address = "127.0.0.1:" + std::to_string((*first)->port());
  const auto second = HttpEndpoint::Start(address, Handlers(&ready));
  EXPECT_EQ(second.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_NE(second.status().message().find(address), absl::string_view::npos)
      << second.status();
  EXPECT_NE(Get((*first)->port(), "/livez").find(" 200 "), std::string::npos);
}

TEST(HttpEndpointTest, BadAddressesArePlainErrors) {
  const std::atomic<bool> ready{true};
  for (const char* address :
       {"127.0.0.1:70000", "127.0.0.1:-1", "127.0.0.1", "127.0.0.1:http",
        "no.such.host:80", "::1:80", ""}) {
    const auto endpoint = HttpEndpoint::Start(address, Handlers(&ready));
    EXPECT_EQ(endpoint.status().code(), absl::StatusCode::kInvalidArgument)
        << address;
    EXPECT_NE(endpoint.status().message().find(address),
              absl::string_view::npos);
  }
  // An address of another machine.
  EXPECT_EQ(
      HttpEndpoint::Start("192.0.2.1:0", Handlers(&ready)).status().code(),
      absl::StatusCode::kUnavailable);
}

TEST(HttpEndpointTest, ClosesCleanlyUnderScrapers) {
  const std::atomic<bool> ready{true};
  auto endpoint = HttpEndpoint::Start("127.0.0.1:0", Handlers(&ready));
  ASSERT_TRUE(endpoint.ok());
  const int port = (*endpoint)->port();
  std::atomic<bool> stop{false};
  std::atomic<int> answered{0};
  std::vector<std::thread> scrapers;
  scrapers.reserve(2);
  for (int i = 0; i < 2; ++i) {
    scrapers.emplace_back([&] {
      while (!stop) {
        if (!Get(port, "/metrics").empty()) ++answered;
      }
    });
  }
  while (answered < 20) std::this_thread::yield();
  endpoint->reset();
  stop = true;
  for (auto& scraper : scrapers) scraper.join();
}

}  // namespace
}  // namespace ithaca::server
