#ifndef ITHACA_CLIENT_CLI_TEXT_TABLE_H_
#define ITHACA_CLIENT_CLI_TEXT_TABLE_H_

#include <ostream>
#include <string>
#include <vector>

namespace ithaca::client {

// Rows of cells in aligned columns: the first to the left, others to the right.
class TextTable {
 public:
  void AddRow(std::vector<std::string> cells);
  void Print(std::ostream& out) const;

 private:
  std::vector<std::vector<std::string>> rows_;
};

// "12.3 us", "4.56 ms", "1.23 s": three significant digits.
std::string SecondsText(double seconds);

// "512 B", "1.5 KiB", "28.3 MiB".
std::string BytesText(double bytes);

}  // namespace ithaca::client

#endif  // ITHACA_CLIENT_CLI_TEXT_TABLE_H_
