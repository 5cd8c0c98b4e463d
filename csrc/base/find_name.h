// The value of an enumeration that has a name: of those from 0 on, for which there is a function `name`.
#pragma once

#include <cstring>

namespace ddl {

// False if none of the first `count` has it; then `*out` stays as it is.
template <typename Enum>
bool find_name(const char* text, int count, Enum* out) {
  for (int i = 0; i < count; ++i) {
    const Enum candidate = static_cast<Enum>(i);
    if (std::strcmp(text, name(candidate)) == 0) {
      *out = candidate;
      return true;
    }
  }
  return false;
}

}  // namespace ddl
