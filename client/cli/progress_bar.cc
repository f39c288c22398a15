#include "client/cli/progress_bar.h"

#include <algorithm>
#include <cmath>

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
      static_cast<int>(std::lround(std::clamp(fraction, 0.0, 1.0) * kWidth));
  out_ << kClearLine << '[' << std::string(full, '#')
       << std::string(kWidth - full, '.') << "] " << text << std::flush;
}

}  // namespace ithaca::client
