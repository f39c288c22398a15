#include "worker/gloo_mesh.h"

#include <net/if.h>
#include <netdb.h>
#include <sys/socket.h>

#include <chrono>
#include <csignal>
#include <cstddef>
#include <exception>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gloo/transport/address.h"
#include "gloo/transport/pair.h"
#include "gloo/transport/tcp/device.h"

namespace ithaca {
namespace {

// Writing to a connection whose peer is gone raises SIGPIPE, whose default is
// to end the process; the error code of the write says the same.
void IgnoreBrokenPipes() {
  struct sigaction action = {};
  if (sigaction(SIGPIPE, nullptr, &action) == 0 &&
      action.sa_handler == SIG_DFL) {
    std::signal(SIGPIPE, SIG_IGN);
  }
}

// Gloo reads the result of a failed look-up, so it only gets what is known to
// be found: a numeric address.
absl::StatusOr<std::string> NumericAddress(const std::string& hostname) {
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int error = getaddrinfo(hostname.c_str(), nullptr, &hints, &found);
  if (error != 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "cannot resolve host '", hostname, "': ", gai_strerror(error)));
  }
  std::string text(NI_MAXHOST, '\0');
  const int failed = getnameinfo(found->ai_addr, found->ai_addrlen, text.data(),
                                 text.size(), nullptr, 0, NI_NUMERICHOST);
  freeaddrinfo(found);
  if (failed != 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "host '", hostname, "' has no address: ", gai_strerror(failed)));
  }
  text.resize(text.find('\0'));
  return text;
}

absl::StatusOr<std::shared_ptr<gloo::transport::Device>> MakeDevice(
    const GlooAddress& address) {
  gloo::transport::tcp::attr attributes;
  attributes.iface = address.interface;
  if (address.interface.empty()) {
    absl::StatusOr<std::string> numeric = NumericAddress(address.hostname);
    if (!numeric.ok()) return numeric.status();
    attributes.hostname = *std::move(numeric);
  }
  // Gloo leaks memory over an interface that it does not find.
  if (!address.interface.empty() &&
      if_nametoindex(address.interface.c_str()) == 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "there is no network interface '", address.interface, "'"));
  }
  std::shared_ptr<gloo::transport::Device> device;
  const absl::Status made = CatchGloo(
      [&] { device = gloo::transport::tcp::CreateDevice(attributes); });
  if (!made.ok()) return absl::InvalidArgumentError(made.message());
  return device;
}

void CloseAll(gloo::transport::Context& context) {
  for (int peer = 0; peer < context.size; ++peer) {
    if (peer == context.rank) continue;
    const std::unique_ptr<gloo::transport::Pair>& pair = context.getPair(peer);
    if (pair == nullptr) continue;
    // Closing twice, or after a failure, is nothing to report.
    CatchGloo([&pair] { pair->close(); }).IgnoreError();
  }
}

// Ends waits for connections at a deadline: Gloo's own limit is a multiple of
// its timeout for each peer in turn.
class ConnectDeadline {
 public:
  ConnectDeadline(gloo::transport::Context& context, absl::Time deadline)
      : thread_([this, &context, deadline] {
          const absl::Duration left = deadline - absl::Now();
          if (connected_.WaitForNotificationWithTimeout(left)) return;
          passed_ = true;
          CloseAll(context);
        }) {}

  ~ConnectDeadline() {
    if (thread_.joinable()) Stop();
  }

  // Whether the deadline had passed.
  bool Stop() {
    connected_.Notify();
    thread_.join();
    return passed_;
  }

 private:
  absl::Notification connected_;
  bool passed_ = false;  // written before thread_ ends
  std::thread thread_;
};

std::string AddressKey(int rank) { return absl::StrCat("gloo/", rank); }

// One address for each peer, in rank order, the own rank left out.
std::string OwnAddresses(gloo::transport::Context& context) {
  std::string addresses;
  for (int peer = 0; peer < context.size; ++peer) {
    if (peer == context.rank) continue;
    const std::vector<char> bytes = context.createPair(peer)->address().bytes();
    addresses.append(bytes.begin(), bytes.end());
  }
  return addresses;
}

// The part of `addresses`, which `peer` published, that is for `rank`.
absl::StatusOr<std::vector<char>> AddressFor(int rank, int peer, int world_size,
                                             const std::string& addresses) {
  const size_t entries = static_cast<size_t>(world_size - 1);
  if (addresses.empty() || addresses.size() % entries != 0) {
    return absl::InternalError(absl::StrCat(
        "rank ", peer, " published ", addresses.size(), " bytes of addresses"));
  }
  const size_t size = addresses.size() / entries;
  const size_t entry = static_cast<size_t>(rank > peer ? rank - 1 : rank);
  const auto begin =
      addresses.begin() + static_cast<std::ptrdiff_t>(entry * size);
  return std::vector<char>(begin, begin + static_cast<std::ptrdiff_t>(size));
}

}  // namespace

absl::Status GlooFailure(const std::exception& error) {
  const absl::string_view said = error.what();
  const size_t place = said.find("] ");
  return absl::UnavailableError(absl::StartsWith(said, "[") &&
                                        place != absl::string_view::npos
                                    ? said.substr(place + 2)
                                    : said);
}

absl::StatusOr<std::unique_ptr<GlooMesh>> GlooMesh::Connect(
    RendezvousStore& store, int rank, int world_size,
    const GlooAddress& address, absl::Time deadline) {
  IgnoreBrokenPipes();
  absl::StatusOr<std::shared_ptr<gloo::transport::Device>> device =
      MakeDevice(address);
  if (!device.ok()) return device.status();

  std::shared_ptr<gloo::transport::Context> context;
  std::string own;
  absl::Status status = CatchGloo([&] {
    context = (*device)->createContext(rank, world_size);
    // Read by connect() only; every other wait names its own limit.
    context->setTimeout(std::chrono::hours(1));
    own = OwnAddresses(*context);
  });
  if (!status.ok()) return status;
  std::unique_ptr<GlooMesh> mesh(new GlooMesh(*std::move(device), context));

  status = store.Set(AddressKey(rank), own);
  if (!status.ok()) return status;
  std::vector<std::vector<char>> peers(static_cast<size_t>(world_size));
  for (int peer = 0; peer < world_size; ++peer) {
    if (peer == rank) continue;
    absl::StatusOr<std::string> published =
        store.Get(AddressKey(peer), deadline - absl::Now());
    if (!published.ok()) {
      return absl::Status(
          published.status().code(),
          absl::StrCat("rank ", rank, " waiting for rank ", peer, ": ",
                       published.status().message()));
    }
    absl::StatusOr<std::vector<char>> entry =
        AddressFor(rank, peer, world_size, *published);
    if (!entry.ok()) return entry.status();
    peers[static_cast<size_t>(peer)] = *std::move(entry);
  }

  int connecting = 0;
  ConnectDeadline limit(*context, deadline);
  status = CatchGloo([&] {
    for (; connecting < world_size; ++connecting) {
      if (connecting == rank) continue;
      context->getPair(connecting)
          ->connect(peers[static_cast<size_t>(connecting)]);
    }
  });
  if (limit.Stop()) {
    return absl::DeadlineExceededError(absl::StrCat(
        "rank ", rank, " could not connect to every peer in time"));
  }
  if (!status.ok()) {
    return absl::UnavailableError(absl::StrCat(
        "rank ", rank, " connecting to ", connecting, ": ", status.message()));
  }
  return mesh;
}

GlooMesh::GlooMesh(std::shared_ptr<gloo::transport::Device> device,
                   std::shared_ptr<gloo::transport::Context> context)
    : device_(std::move(device)), context_(std::move(context)) {}

GlooMesh::~GlooMesh() = default;

std::unique_ptr<gloo::transport::UnboundBuffer> GlooMesh::MakeBuffer(
    void* data, size_t bytes) {
  return context_->createUnboundBuffer(data, bytes);
}

void GlooMesh::Close() { CloseAll(*context_); }

}  // namespace ithaca
