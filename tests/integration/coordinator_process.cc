#include "tests/integration/coordinator_process.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <grpcpp/client_context.h>
#include <grpcpp/create_channel.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/security/credentials.h>
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/slice.h>
#include <netinet/in.h>
#include <signal.h>
#include <spawn.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"

namespace ithaca {

namespace {

constexpr absl::Duration kPatience = absl::Seconds(120);

std::string TemporaryFile() {
  const char* folder = getenv("TEST_TMPDIR");
  std::string path =
      std::string(folder == nullptr ? "/tmp" : folder) + "/coordinator.XXXXXX";
  const int fd = mkstemp(path.data());
  close(fd);
  return path;
}

}  // namespace

bool AwaitTrue(const std::function<bool()>& condition) {
  const absl::Time deadline = absl::Now() + kPatience;
  while (!condition()) {
    if (absl::Now() > deadline) return false;
    absl::SleepFor(absl::Milliseconds(10));
  }
  return true;
}

CoordinatorProcess::CoordinatorProcess(const std::vector<std::string>& flags)
    : log_path_(TemporaryFile()) {
  std::vector<std::string> arguments = {
      "server/ithaca-coordinator", "--listen=127.0.0.1:0",
      "--metrics-listen=127.0.0.1:0", "--log-format=json",
      "--worker-binary=worker/ithaca-worker"};
  arguments.insert(arguments.end(), flags.begin(), flags.end());
  std::vector<char*> argv;
  argv.reserve(arguments.size() + 1);
  for (std::string& argument : arguments) argv.push_back(argument.data());
  argv.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, log_path_.c_str(),
                                   O_WRONLY | O_APPEND, 0600);
  if (posix_spawn(&pid_, argv[0], &actions, nullptr, argv.data(), environ) !=
      0) {
    pid_ = 0;
  }
  posix_spawn_file_actions_destroy(&actions);
}

CoordinatorProcess::~CoordinatorProcess() {
  if (pid_ != 0) {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  unlink(log_path_.c_str());
}

bool CoordinatorProcess::AwaitListening() {
  const auto listens = [this] {
    std::istringstream lines(Log());
    for (std::string line; std::getline(lines, line);) {
      const auto json =
          nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
      if (!json.is_object() || json.value("message", "") != "listening") {
        continue;
      }
      port_ = json["port"];
      metrics_port_ = json["metrics_port"];
      return true;
    }
    return false;
  };
  const bool settled = AwaitTrue([&] {
    siginfo_t ended{};
    waitid(P_PID, static_cast<id_t>(pid_), &ended, WEXITED | WNOHANG | WNOWAIT);
    return listens() || ended.si_pid != 0;
  });
  if (!settled || port_ == 0) return false;
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(-1);
  channel_ = grpc::CreateCustomChannel(
      address(), grpc::InsecureChannelCredentials(), arguments);
  stub_ = ithaca::v1::AttentionService::NewStub(channel_);
  return true;
}

bool CoordinatorProcess::AwaitReady() {
  return AwaitListening() &&
         AwaitTrue([this] { return Get("/readyz").code == 200; });
}

int CoordinatorProcess::AwaitExit() {
  int status = 0;
  const bool ended =
      AwaitTrue([&] { return waitpid(pid_, &status, WNOHANG) == pid_; });
  if (!ended) return -1;
  pid_ = 0;
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

void CoordinatorProcess::Signal(int signal) const { kill(pid_, signal); }

std::string CoordinatorProcess::address() const {
  return "127.0.0.1:" + std::to_string(port_);
}

grpc::Status CoordinatorProcess::Call(
    const ithaca::v1::AttentionRequest& request,
    ithaca::v1::AttentionResponse* response) const {
  grpc::ClientContext context;
  context.set_deadline(absl::ToChronoTime(absl::Now() + kPatience));
  return stub_->Attention(&context, request, response);
}

int CoordinatorProcess::Health(const std::string& service) const {
  // HealthCheckRequest's one field, and HealthCheckResponse's.
  std::string encoded;
  if (!service.empty()) {
    encoded =
        "\x0a" + std::string(1, static_cast<char>(service.size())) + service;
  }
  const grpc::Slice request(encoded);
  const grpc::ByteBuffer message(&request, 1);
  grpc::ByteBuffer answer;
  grpc::ClientContext context;
  absl::Notification done;
  grpc::Status status;
  grpc::GenericStub(channel_).UnaryCall(
      &context, "/grpc.health.v1.Health/Check", grpc::StubOptions(), &message,
      &answer, [&](grpc::Status ended) {
        status = std::move(ended);
        done.Notify();
      });
  done.WaitForNotification();
  grpc::Slice slice;
  if (!status.ok() || !answer.DumpToSingleSlice(&slice).ok()) return -1;
  return slice.size() == 2 ? slice.begin()[1] : 0;
}

CoordinatorProcess::HttpAnswer CoordinatorProcess::Get(
    const std::string& path) const {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(metrics_port_));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  std::string text;
  if (connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)) ==
      0) {
    const std::string request = "GET " + path + " HTTP/1.0\r\n\r\n";
    send(fd, request.data(), request.size(), MSG_NOSIGNAL);
    char buffer[4096];
    for (ssize_t n; (n = read(fd, buffer, sizeof(buffer))) > 0;) {
      text.append(buffer, static_cast<size_t>(n));
    }
  }
  close(fd);
  HttpAnswer answer;
  const size_t body = text.find("\r\n\r\n");
  if (body != std::string::npos && text.size() > 12) {
    answer.code = std::stoi(text.substr(9, 3));
    answer.body = text.substr(body + 4);
  }
  return answer;
}

double CoordinatorProcess::Metric(const std::string& series) const {
  const std::string page = "\n" + Get("/metrics").body;
  const size_t at = page.find("\n" + series + " ");
  return at == std::string::npos
             ? -1
             : std::stod(page.substr(at + series.size() + 2));
}

int64_t CoordinatorProcess::PeakMemoryBytes() const {
  std::ifstream status("/proc/" + std::to_string(pid_) + "/status");
  for (std::string line; std::getline(status, line);) {
    if (line.rfind("VmHWM:", 0) == 0) return std::stoll(line.substr(6)) * 1024;
  }
  return -1;
}

std::vector<pid_t> CoordinatorProcess::WorkerPids() const {
  grpc::ClientContext context;
  ithaca::v1::GetServerInfoResponse info;
  std::vector<pid_t> pids;
  if (!stub_->GetServerInfo(&context, {}, &info).ok()) return pids;
  for (const auto& group : info.groups()) {
    for (const std::string& worker : group.workers()) {
      pids.push_back(std::stoi(worker.substr(worker.rfind('/') + 1)));
    }
  }
  return pids;
}

uint64_t CoordinatorProcess::Generation() const {
  grpc::ClientContext context;
  ithaca::v1::GetServerInfoResponse info;
  if (!stub_->GetServerInfo(&context, {}, &info).ok()) return 0;
  return info.groups().empty() ? 0 : info.groups(0).generation();
}

std::string CoordinatorProcess::Log() const {
  std::ifstream file(log_path_);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

}  // namespace ithaca
