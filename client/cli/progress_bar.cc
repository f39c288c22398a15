#include "client/cli/progress_bar.h"

#include <algorithm>

namespace ithaca::client {
namespace {

constexpr int kWidth = 30;
constexpr char kClearLine[] = "\r\033[K";

}  // namespace

ProgressBar::~ProgressBar() {
  if (drawn_) out_ << kClearLine << std::flush;
}

void ProgressBar::Update(double fraction, const std::string& text) {
  if (!enabled_) return;
  drawn_ = true;
  const int full =
      static_cast<int>(std::clamp(fraction, 0.0, 1.0) * kWidth + 0.5);
  out_ << kClearLine << '[' << std::string(full, '#')
       << std::string(kWidth - full, '.') << "] " << text << std::flush;
}

}  // namespace ithaca::client
