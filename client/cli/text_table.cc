#include "client/cli/text_table.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace ithaca::client {
namespace {

// Three significant digits of a number below 1000 or so.
std::string ThreeDigits(double number) {
  const double magnitude = std::abs(number);
  const int decimals = magnitude < 9.995 ? 2 : magnitude < 99.95 ? 1 : 0;
  return absl::StrFormat("%.*f", decimals, number);
}

}  // namespace

void TextTable::AddRow(std::vector<std::string> cells) {
  rows_.push_back(std::move(cells));
}

void TextTable::Print(std::ostream& out) const {
  std::vector<size_t> widths;
  for (const auto& row : rows_) {
    widths.resize(std::max(widths.size(), row.size()));
    for (size_t i = 0; i < row.size(); ++i) {
      widths[i] = std::max(widths[i], row[i].size());
    }
  }
  for (const auto& row : rows_) {
    std::string line;
    for (size_t i = 0; i < row.size(); ++i) {
      const std::string padding(widths[i] - row[i].size(), ' ');
      if (i > 0) line.append("  ");
      line.append(i == 0 ? row[i] + padding : padding + row[i]);
    }
    line.erase(line.find_last_not_of(' ') + 1);
    out << line << '\n';
  }
}

std::string SecondsText(double seconds) {
  const double magnitude = std::abs(seconds);
  if (magnitude < 0.9995e-3) return ThreeDigits(seconds * 1e6) + " us";
  if (magnitude < 0.9995) return ThreeDigits(seconds * 1e3) + " ms";
  return ThreeDigits(seconds) + " s";
}

std::string BytesText(double bytes) {
  if (bytes < 1024) return absl::StrFormat("%.0f B", bytes);
  for (const char* unit : {"KiB", "MiB"}) {
    bytes /= 1024;
    if (bytes < 999.5) return absl::StrCat(ThreeDigits(bytes), " ", unit);
  }
  return ThreeDigits(bytes / 1024) + " GiB";
}

}  // namespace ithaca::client
