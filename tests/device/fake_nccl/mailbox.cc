#include "mailbox.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

namespace fake_nccl {

namespace {

Mailbox* map_mailbox(int file) {
  void* const memory = ::mmap(nullptr, sizeof(Mailbox), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  return memory == MAP_FAILED ? nullptr : static_cast<Mailbox*>(memory);
}

std::string mailbox_file(const std::string& folder, int rank) { return folder + "/" + std::to_string(rank); }

}  // namespace

Mailbox* create_mailbox(const std::string& folder, int rank, const Mailbox& content) {
  if (::mkdir(folder.c_str(), 0700) != 0 && errno != EEXIST) return nullptr;
  const std::string target = mailbox_file(folder, rank);
  const std::string draft = target + ".new" + std::to_string(::getpid());
  const int file = ::open(draft.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  if (file < 0) return nullptr;
  Mailbox* box = ::ftruncate(file, sizeof(Mailbox)) == 0 ? map_mailbox(file) : nullptr;
  ::close(file);
  if (box != nullptr) {
    box->size = content.size;
    box->version = content.version;
    box->device = content.device;
    box->pid = content.pid;
    box->host = content.host;
    if (::link(draft.c_str(), target.c_str()) != 0) {
      const int reason = errno;
      ::munmap(box, sizeof(Mailbox));
      box = nullptr;
      errno = reason;
    }
  }
  const int reason = errno;
  ::unlink(draft.c_str());
  errno = reason;
  return box;
}

Mailbox* open_mailbox(const std::string& folder, int rank) {
  const int file = ::open(mailbox_file(folder, rank).c_str(), O_RDWR | O_CLOEXEC);
  if (file < 0) return nullptr;
  Mailbox* const box = map_mailbox(file);
  ::close(file);
  return box;
}

std::string payload_file(const std::string& folder, int rank, uint64_t number) {
  return mailbox_file(folder, rank) + "." + std::to_string(number);
}

Payload::Payload(const std::string& file, size_t bytes) : bytes_(bytes) {
  const int opened = ::open(file.c_str(), O_RDONLY | O_CLOEXEC);
  if (opened < 0) return;
  struct stat status = {};
  if (::fstat(opened, &status) == 0 && static_cast<size_t>(status.st_size) >= bytes) {
    void* const memory = ::mmap(nullptr, bytes, PROT_READ, MAP_SHARED, opened, 0);
    if (memory != MAP_FAILED) data_ = static_cast<const char*>(memory);
  }
  ::close(opened);
}

Payload::~Payload() {
  if (data_ != nullptr) ::munmap(const_cast<char*>(data_), bytes_);
}

bool write_payload(const std::string& file, const char* data, size_t bytes) {
  const int opened = ::open(file.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  if (opened < 0) return false;
  size_t written = 0;
  while (written < bytes) {
    const ssize_t now = ::write(opened, data + written, bytes - written);
    if (now <= 0) break;
    written += static_cast<size_t>(now);
  }
  ::close(opened);
  return written == bytes;
}

}  // namespace fake_nccl
