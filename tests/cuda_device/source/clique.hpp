// The ranks of a communicator, each a process, and the memory through which they hand each other what they have.
#pragma once
#include <atomic>
#include <cstdint>
#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

// Why a collective could not be: a rank that is gone or asks for something else, an end of patience.
struct CliqueError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

class Clique {
 public:
  static constexpr uint64_t MOST_BYTES = 256 << 10;  // at a time

  // Waits for the others.
  Clique(const std::string& name, int size, int rank);
  ~Clique();

  const int size, rank;

  // Every rank shows what it has, at most MOST_BYTES, and then looks at what all of them show. The ranks must be doing the
  // same: `what` says what it is.
  void exchange(const std::string& what, const void* mine, uint64_t bytes, const std::function<void(const std::vector<const void*>&)>& look);

  void send(int to, const void* data, uint64_t bytes);  // waits for nobody
  void receive(int from, void* data, uint64_t bytes);

  void abort() { aborted_ = true; }  // ends what waits
  std::string name_of_part(int color);  // another clique's name, equal for all ranks that ask at the same time

 private:
  struct Slot;
  struct Shared;
  void wait(const std::function<bool()>& until, const char* what);
  std::string message(int from, int to, uint64_t number) const;

  std::string name_;
  Shared* shared_;
  uint64_t round_ = 0;
  std::vector<uint64_t> sent_, received_;
  std::atomic<bool> aborted_{false};
  int parts_ = 0;
};
