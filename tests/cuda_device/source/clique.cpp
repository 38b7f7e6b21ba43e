#include "clique.hpp"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "machine.hpp"

struct Clique::Slot {
  std::atomic<int> pid;
  std::atomic<bool> left;
  std::atomic<uint64_t> shown, seen;  // rounds
  char what[120];
  char data[MOST_BYTES];
};
struct Clique::Shared {
  std::atomic<int> joined;
  Slot slots[];
};

namespace {
double patience() {  // as long as torch has by default
  const char* seconds = getenv("SOFTWARE_GPU_NCCL_SECONDS");
  return seconds && *seconds ? atof(seconds) : 600;
}

double now() {
  timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return time.tv_sec + time.tv_nsec / 1e9;
}

// One that has ended and that nobody has asked about has no place any more in what runs.
bool runs(int pid) {
  char path[32], text[512];
  snprintf(path, sizeof path, "/proc/%d/stat", pid);
  FILE* file = fopen(path, "r");
  if (!file) return false;
  size_t length = fread(text, 1, sizeof text - 1, file);
  fclose(file);
  text[length] = 0;
  const char* after = strrchr(text, ')');
  return after && after[1] && after[2] != 'Z' && after[2] != 'X';
}
}  // namespace

Clique::Clique(const std::string& name, int size, int rank)
    : size(size), rank(rank), name_(std::string(machine::books_file()) + "-nccl-" + name), sent_(size), received_(size) {
  uint64_t bytes = sizeof(Shared) + size * sizeof(Slot);
  int file = open(name_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  void* mapped = MAP_FAILED;
  if (file >= 0 && ftruncate(file, bytes) == 0) mapped = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  if (file >= 0) close(file);
  if (mapped == MAP_FAILED) throw CliqueError("no memory to share");
  shared_ = (Shared*)mapped;
  shared_->slots[rank].pid = getpid();
  shared_->joined++;
  wait([&] { return shared_->joined >= size; }, "all ranks to come");
  unlink(name_.c_str());
}

Clique::~Clique() {
  shared_->slots[rank].left = true;
  munmap(shared_, sizeof(Shared) + size * sizeof(Slot));
}

void Clique::wait(const std::function<bool()>& until, const char* what) {
  double begin = now(), looked = begin;
  for (long pause = 0; !until(); pause = std::min(pause + 1000, 200000l)) {
    timespec rest{0, pause};
    nanosleep(&rest, nullptr);
    if (aborted_) throw CliqueError("the communicator was aborted");
    double moment = now();
    if (moment - looked < 0.05) continue;
    looked = moment;
    for (int other = 0; other < size; other++) {
      int pid = shared_->slots[other].pid;
      bool gone = pid && (shared_->slots[other].left || !runs(pid));
      // What it did before it went may be all that was waited for.
      if (gone && !until()) throw CliqueError("rank " + std::to_string(other) + " is gone");
    }
    if (moment - begin > patience()) throw CliqueError(std::string("waited too long for ") + what);
  }
}

void Clique::exchange(
    const std::string& what, const void* mine, uint64_t bytes, const std::function<void(const std::vector<const void*>&)>& look) {
  uint64_t round = ++round_;
  auto all = [&](std::atomic<uint64_t> Slot::*reached, uint64_t number) {
    for (int other = 0; other < size; other++)
      if (shared_->slots[other].*reached < number) return false;
    return true;
  };
  wait([&] { return all(&Slot::seen, round - 1); }, "all ranks to have seen what was before");
  Slot& own = shared_->slots[rank];
  snprintf(own.what, sizeof own.what, "%s", what.c_str());
  if (bytes) memcpy(own.data, mine, bytes);
  own.shown = round;
  wait([&] { return all(&Slot::shown, round); }, what.c_str());
  std::vector<const void*> shown;
  for (int other = 0; other < size; other++) {
    const Slot& slot = shared_->slots[other];
    if (strncmp(slot.what, own.what, sizeof own.what))
      throw CliqueError(std::string("rank ") + std::to_string(other) + " does " + slot.what + ", and this one " + own.what);
    shown.push_back(slot.data);
  }
  look(shown);
  own.seen = round;
}

std::string Clique::message(int from, int to, uint64_t number) const {
  return name_ + "-" + std::to_string(from) + "-" + std::to_string(to) + "-" + std::to_string(number);
}

void Clique::send(int to, const void* data, uint64_t bytes) {
  std::string path = message(rank, to, ++sent_[to]), unfinished = path + ".part";
  FILE* file = fopen(unfinished.c_str(), "w");
  bool written = file && fwrite(data, 1, bytes, file) == bytes;
  if (file) written = fclose(file) == 0 && written;
  if (!written || rename(unfinished.c_str(), path.c_str())) throw CliqueError("no memory to share");
}

void Clique::receive(int from, void* data, uint64_t bytes) {
  std::string path = message(from, rank, ++received_[from]);
  struct stat found;
  wait([&] { return stat(path.c_str(), &found) == 0; }, "a message");
  if ((uint64_t)found.st_size != bytes) throw CliqueError("rank " + std::to_string(from) + " sends another number of bytes");
  FILE* file = fopen(path.c_str(), "r");
  bool read = file && fread(data, 1, bytes, file) == bytes;
  if (file) fclose(file);
  unlink(path.c_str());
  if (!read) throw CliqueError("a message cannot be read");
}

std::string Clique::name_of_part(int color) {
  return name_.substr(name_.find("-nccl-") + 6) + "." + std::to_string(parts_++) + "." + std::to_string(color);
}
