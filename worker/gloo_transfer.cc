#include "worker/gloo_transfer.h"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "absl/types/span.h"

namespace ithaca {
namespace {

// The non-empty segments with each peer, in order; a peer's bytes in all.
template <typename Segment>
struct PeerSegments {
  std::vector<Segment> segments;
  int64_t bytes = 0;

  bool joined() const {
    return segments.size() > 1 && bytes <= GlooTransfer::kJoinedBytes;
  }
};

template <typename Segment>
PeerSegments<Segment> Select(absl::Span<const Segment> all, int peer) {
  PeerSegments<Segment> selected;
  for (const Segment& segment : all) {
    if (segment.peer != peer || segment.bytes == 0) continue;
    selected.segments.push_back(segment);
    selected.bytes += segment.bytes;
  }
  return selected;
}

}  // namespace

GlooTransfer::GlooTransfer(GlooMesh& mesh, int rank, int world_size,
                           absl::Span<const SendSegment> sends,
                           absl::Span<const RecvSegment> recvs) {
  sends_.reserve(sends.size());
  recvs_.reserve(recvs.size());
  // Each rank starts with its own successor, so that no rank is everybody's
  // first.
  for (int step = 1; step < world_size; ++step) {
    AddSends(mesh, (rank + step) % world_size, sends);
    AddRecvs(mesh, (rank + world_size - step) % world_size, recvs);
  }
}

void GlooTransfer::AddSends(GlooMesh& mesh, int peer,
                            absl::Span<const SendSegment> sends) {
  const PeerSegments<SendSegment> selected = Select(sends, peer);
  if (selected.joined()) {
    Message message;
    message.peer = peer;
    message.joined.resize(static_cast<size_t>(selected.bytes));
    char* end = message.joined.data();
    for (const SendSegment& segment : selected.segments) {
      std::memcpy(end, segment.data, static_cast<size_t>(segment.bytes));
      end += segment.bytes;
    }
    message.buffer =
        mesh.MakeBuffer(message.joined.data(), message.joined.size());
    sends_.push_back(std::move(message));
    return;
  }
  uint64_t slot = 0;
  for (const SendSegment& segment : selected.segments) {
    Message message;
    message.peer = peer;
    message.slot = slot++;
    // Gloo has one type of buffer for both ways and only reads this one.
    message.buffer = mesh.MakeBuffer(const_cast<void*>(segment.data),
                                     static_cast<size_t>(segment.bytes));
    sends_.push_back(std::move(message));
  }
}

void GlooTransfer::AddRecvs(GlooMesh& mesh, int peer,
                            absl::Span<const RecvSegment> recvs) {
  PeerSegments<RecvSegment> selected = Select(recvs, peer);
  if (selected.joined()) {
    Message message;
    message.peer = peer;
    message.joined.resize(static_cast<size_t>(selected.bytes));
    message.buffer =
        mesh.MakeBuffer(message.joined.data(), message.joined.size());
    message.parts = std::move(selected.segments);
    recvs_.push_back(std::move(message));
    return;
  }
  uint64_t slot = 0;
  for (const RecvSegment& segment : selected.segments) {
    Message message;
    message.peer = peer;
    message.slot = slot++;
    message.buffer =
        mesh.MakeBuffer(segment.data, static_cast<size_t>(segment.bytes));
    recvs_.push_back(std::move(message));
  }
}

void GlooTransfer::Post(uint64_t first_slot) {
  for (Message& message : recvs_) {
    message.buffer->recv(message.peer, first_slot + message.slot);
  }
  for (Message& message : sends_) {
    message.buffer->send(message.peer, first_slot + message.slot);
  }
}

absl::Status GlooTransfer::Wait(absl::Duration limit) {
  const absl::Time deadline = absl::Now() + limit;
  auto left = [deadline] {
    // Gloo takes -1 for its own default.
    return std::max(absl::ToChronoMilliseconds(deadline - absl::Now()),
                    std::chrono::milliseconds(1));
  };
  auto wait = [](const Message& message, const auto& wait_one) {
    bool done = false;
    absl::Status status = CatchGloo([&] { done = wait_one(); });
    if (status.ok() && !done) status = absl::UnavailableError("aborted");
    if (status.ok()) return status;
    return absl::UnavailableError(absl::StrCat(
        "exchange with rank ", message.peer, ": ", status.message()));
  };
  for (const Message& message : recvs_) {
    absl::Status status = wait(
        message, [&] { return message.buffer->waitRecv(nullptr, left()); });
    if (!status.ok()) return status;
    const char* end = message.joined.data();
    for (const RecvSegment& part : message.parts) {
      std::memcpy(part.data, end, static_cast<size_t>(part.bytes));
      end += part.bytes;
    }
  }
  for (const Message& message : sends_) {
    absl::Status status = wait(
        message, [&] { return message.buffer->waitSend(nullptr, left()); });
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

void GlooTransfer::Wake() {
  for (const Message& message : recvs_) message.buffer->abortWaitRecv();
  for (const Message& message : sends_) message.buffer->abortWaitSend();
}

}  // namespace ithaca
