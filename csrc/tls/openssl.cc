#include "tls/openssl.h"

#include <dlfcn.h>

#include <string>

#include "base/error.h"

namespace ddl {

namespace {

constexpr const char* kNames[] = {"libssl.so.3", "libssl.so.1.1"};
constexpr const char* kVariable = "DDL_OPENSSL";  // names the path

// One that is mapped already comes first: Python's module ssl brings it, and two versions in one process may clash.
void* library(const std::string& path) {
  if (!path.empty()) {
    if (void* const named = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL)) return named;
    throw Error(ErrorKind::kResourceError, std::string(kVariable) + "=" + path + ": " + ::dlerror());
  }
  for (const int how : {RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD, RTLD_NOW | RTLD_LOCAL}) {
    for (const char* name : kNames) {
      if (void* const found = ::dlopen(name, how)) return found;
    }
  }
  throw Error(ErrorKind::kResourceError,
              "encryption needs OpenSSL, and neither libssl.so.3 nor libssl.so.1.1 is there; install it (Debian: "
              "libssl3; conda: openssl), or name the path of its libssl in " +
                  std::string(kVariable));
}

void* function(void* from, const char* name) {
  if (void* const found = ::dlsym(from, name)) return found;
  throw Error(ErrorKind::kResourceError,
              std::string("encryption needs OpenSSL 1.1.1 or later, and the libssl that was found has no ") + name +
                  "; name the path of another one in " + kVariable);
}

OpenSsl functions(const std::string& path) {
  void* const from = library(path);  // for good
  OpenSsl table{};
#define DDL_FIND(returned, name, parameters) \
  table.name = reinterpret_cast<returned(*) parameters>(function(from, #name));
  DDL_OPENSSL_FUNCTIONS(DDL_FIND)
#undef DDL_FIND
  return table;
}

const OpenSsl& loaded(const std::string& path) {
  static const OpenSsl table = functions(path);
  return table;
}

}  // namespace

void OpenSsl::load(const std::string& path) { loaded(path); }

const OpenSsl& OpenSsl::get() { return loaded(""); }

}  // namespace ddl
