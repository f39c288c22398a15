#include "worker/file_rendezvous_store.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <string>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"

namespace ithaca {

FileRendezvousStore::FileRendezvousStore(std::string folder)
    : folder_(std::move(folder)) {}

FileRendezvousStore FileRendezvousStore::Fresh() {
  const char* root = std::getenv("TEST_TMPDIR");
  std::string folder =
      absl::StrCat(root != nullptr ? root : "/tmp", "/rendezvous-XXXXXX");
  if (mkdtemp(folder.data()) == nullptr) std::abort();
  return FileRendezvousStore(folder);
}

absl::Status FileRendezvousStore::Set(std::string_view key,
                                      std::string_view value) {
  const std::string path = PathOf(key);
  const std::string unfinished = path + ".part";
  {
    std::ofstream file(unfinished, std::ios::binary);
    file.write(value.data(), static_cast<std::streamsize>(value.size()));
    if (!file) return absl::UnavailableError("cannot write " + unfinished);
  }
  if (std::rename(unfinished.c_str(), path.c_str()) != 0) {
    return absl::UnavailableError("cannot rename " + unfinished);
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> FileRendezvousStore::Get(std::string_view key,
                                                     absl::Duration timeout) {
  const absl::Time deadline = absl::Now() + timeout;
  const std::string path = PathOf(key);
  for (;;) {
    std::ifstream file(path, std::ios::binary);
    if (file) {
      return std::string(std::istreambuf_iterator<char>(file),
                         std::istreambuf_iterator<char>());
    }
    if (absl::Now() >= deadline) {
      return absl::DeadlineExceededError("nobody set " + std::string(key));
    }
    absl::SleepFor(absl::Milliseconds(1));
  }
}

std::string FileRendezvousStore::PathOf(std::string_view key) const {
  std::string name(key);
  std::replace(name.begin(), name.end(), '/', '-');
  return absl::StrCat(folder_, "/", name);
}

}  // namespace ithaca
