#include "launcher/export/pickle.h"

#include <bit>
#include <cstdint>

namespace dtrain::launcher {
namespace {

// Opcodes of CPython's pickletools.
constexpr char kProtocol2[] = "\x80\x02";
constexpr char kStop = '.';
constexpr char kNone = 'N';
constexpr char kTrue = '\x88';
constexpr char kFalse = '\x89';
constexpr char kLong1 = '\x8a';  // A length byte, then two's complement, little-endian.
constexpr char kFloat = 'G';     // 8 bytes, big-endian.
constexpr char kUnicode = 'X';   // 4 bytes of length, then UTF-8.
constexpr char kEmptyDict = '}';
constexpr char kEmptyList = ']';
constexpr char kMark = '(';
constexpr char kSetItems = 'u';
constexpr char kAppends = 'e';

void PutLittleEndian(uint64_t value, int bytes, std::string& out) {
  for (int i = 0; i < bytes; ++i) {
    out.push_back(static_cast<char>(value >> (8 * i)));
  }
}

void PutString(const std::string& text, std::string& out) {
  out.push_back(kUnicode);
  PutLittleEndian(text.size(), 4, out);
  out += text;
}

void PutInteger(const Json& value, std::string& out) {
  out.push_back(kLong1);
  if (value.is_number_unsigned()) {  // A ninth byte keeps the sign bit clear.
    out.push_back(9);
    PutLittleEndian(value.get<uint64_t>(), 8, out);
    out.push_back(0);
  } else {
    out.push_back(8);
    PutLittleEndian(static_cast<uint64_t>(value.get<int64_t>()), 8, out);
  }
}

void PutFloat(double value, std::string& out) {
  out.push_back(kFloat);
  const auto bits = std::bit_cast<uint64_t>(value);
  for (int i = 7; i >= 0; --i) {
    out.push_back(static_cast<char>(bits >> (8 * i)));
  }
}

void Put(const Json& value, std::string& out) {
  if (value.is_null()) {
    out.push_back(kNone);
  } else if (value.is_boolean()) {
    out.push_back(value.get<bool>() ? kTrue : kFalse);
  } else if (value.is_number_integer()) {
    PutInteger(value, out);
  } else if (value.is_number()) {
    PutFloat(value.get<double>(), out);
  } else if (value.is_string()) {
    PutString(value.get_ref<const std::string&>(), out);
  } else if (value.is_array()) {
    out.push_back(kEmptyList);
    out.push_back(kMark);
    for (const Json& item : value) {
      Put(item, out);
    }
    out.push_back(kAppends);
  } else {
    out.push_back(kEmptyDict);
    out.push_back(kMark);
    for (const auto& [key, item] : value.items()) {
      PutString(key, out);
      Put(item, out);
    }
    out.push_back(kSetItems);
  }
}

}  // namespace

std::string ToPickle(const Json& value) {
  std::string out = kProtocol2;
  Put(value, out);
  out.push_back(kStop);
  return out;
}

}  // namespace dtrain::launcher
