// NCCL: communicators know their size and rank. Where values are computed, ranks exchange what they have while the host
// waits; else collectives succeed at once and send nothing: every rank is taken to have what this one has.
#include <nccl.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <mutex>

#include "clique.hpp"
#include "machine.hpp"
#include "memory.hpp"
#include "reductions.hpp"
#include "values.hpp"

namespace {
struct Communicator {
  int size, rank;
  std::unique_ptr<Clique> clique;  // of ranks that exchange values; none if nothing is sent
};
Communicator& in(ncclComm_t communicator) { return *(Communicator*)communicator; }

thread_local std::string last_error;
ncclResult_t failed(const CliqueError& error) {
  last_error = error.what();
  return ncclRemoteError;
}

ncclResult_t make(ncclComm_t* communicator, int size, int rank, const std::string& name) {
  try {
    bool exchanges = values::on() && machine::books_file();
    *communicator = (ncclComm_t) new Communicator{size, rank, exchanges ? std::make_unique<Clique>(name, size, rank) : nullptr};
    return ncclSuccess;
  } catch (const CliqueError& error) {
    return failed(error);
  }
}

std::string name_of(const ncclUniqueId& id) {
  std::string name;
  for (int i = 0; i < 16; i++) {
    char digits[3];
    snprintf(digits, sizeof digits, "%02x", (unsigned char)id.internal[i]);
    name += digits;
  }
  return name;
}

// ------------------------------------------------------------------------------------------------------- operations

std::mutex operations_lock;
std::map<int, double> factors;  // of ncclRedOpCreatePreMulSum
int next_operation = ncclNumOps;

reductions::Operation operation_of(ncclRedOp_t operation) {
  std::lock_guard<std::mutex> guard(operations_lock);
  auto found = factors.find(operation);
  return found == factors.end() ? reductions::Operation{operation} : reductions::Operation{ncclSum, found->second};
}

// ----------------------------------------------------------------------------------------------------------- groups
// What is asked for between ncclGroupStart and ncclGroupEnd is done at the end, sends before receipts.

struct Task {
  bool receives;
  std::function<void()> run;
};
thread_local int group_depth = 0;
thread_local std::vector<Task> waiting;

ncclResult_t run_waiting() {
  auto tasks = std::move(waiting);
  waiting.clear();
  std::stable_partition(tasks.begin(), tasks.end(), [](const Task& task) { return !task.receives; });
  try {
    for (auto& task : tasks) task.run();
    return ncclSuccess;
  } catch (const CliqueError& error) {
    return failed(error);
  }
}

ncclResult_t later(std::function<void()> run, bool receives = false) {
  waiting.push_back({receives, std::move(run)});
  return group_depth ? ncclSuccess : run_waiting();
}

// Where nothing is sent: a broadcast from another rank brings what this rank broadcasts in its stead, as in a group that
// is an all-gather into a list.
struct Broadcast {
  const void* from;
  void* to;
  size_t bytes;
};
thread_local std::map<const Communicator*, std::map<int, std::vector<Broadcast>>> broadcasts;  // by root

void run_broadcasts() {
  for (auto& [ranks, by_root] : broadcasts) {
    auto own = by_root[ranks->rank];
    for (auto& [root, several] : by_root)
      for (size_t place = 0; place < several.size(); place++) {
        auto [from, to, bytes] = several[place];
        if (place < own.size() && own[place].bytes == bytes) from = own[place].from;
        if (from && from != to) memory::copied(to, from, bytes);
      }
  }
  broadcasts.clear();
}

// ------------------------------------------------------------------------------------------------------ collectives

using Look = std::function<void(const std::vector<const void*>&, size_t begin, size_t count)>;

// In pieces that fit; `from` is null where this rank shows nothing.
void in_pieces(Clique& clique, const std::string& what, const void* from, size_t count, ncclDataType_t type, const Look& look) {
  size_t bytes = reductions::bytes_of(type), most = Clique::MOST_BYTES / bytes;
  std::string described = what + " of " + std::to_string(count) + " x type " + std::to_string(type);
  for (size_t begin = 0; begin < count; begin += most) {
    size_t piece = std::min(most, count - begin);
    const char* mine = from ? (const char*)from + begin * bytes : nullptr;
    clique.exchange(described, mine, mine ? piece * bytes : 0, [&](auto& shown) { look(shown, begin, piece); });
  }
}

void* at(void* memory, size_t index, ncclDataType_t type) { return (char*)memory + index * reductions::bytes_of(type); }
const void* at(const void* memory, size_t index, ncclDataType_t type) { return (const char*)memory + index * reductions::bytes_of(type); }

// Into `to` of one rank, or of all (-1).
void reduced(
    Clique& clique, const std::string& what, const void* from, void* to, size_t count, ncclDataType_t type, ncclRedOp_t operation, int root) {
  auto how = operation_of(operation);
  in_pieces(clique, what + " (" + std::to_string(how.kind) + ")", from, count, type, [&](auto& shown, size_t begin, size_t piece) {
    if (root < 0 || root == clique.rank) reductions::reduce(at(to, begin, type), shown, piece, type, how);
  });
}

// Of all ranks, one after another, into `to` of one rank, or of all (-1).
void gathered(Clique& clique, const std::string& what, const void* from, void* to, size_t count, ncclDataType_t type, int root) {
  in_pieces(clique, what, from, count, type, [&](auto& shown, size_t begin, size_t piece) {
    if (root >= 0 && root != clique.rank) return;
    for (int rank = 0; rank < clique.size; rank++)
      memcpy(at(to, rank * count + begin, type), shown[rank], piece * reductions::bytes_of(type));
  });
}
}  // namespace

API ncclResult_t ncclGetVersion(int* version) {
  *version = NCCL_VERSION_CODE;
  return ncclSuccess;
}

API ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  memset(id, 1, sizeof *id);
  FILE* random = values::on() ? fopen("/dev/urandom", "r") : nullptr;
  if (!random) return values::on() ? ncclSystemError : ncclSuccess;
  bool read = fread(id, sizeof *id, 1, random) == 1;
  fclose(random);
  return read ? ncclSuccess : ncclSystemError;
}

API const char* ncclGetErrorString(ncclResult_t) { return "an error of NCCL"; }
API const char* ncclGetLastError(ncclComm_t) { return last_error.c_str(); }

API ncclResult_t ncclCommInitRank(ncclComm_t* communicator, int size, ncclUniqueId id, int rank) {
  return make(communicator, size, rank, name_of(id));
}

API ncclResult_t ncclCommInitRankConfig(ncclComm_t* communicator, int size, ncclUniqueId id, int rank, ncclConfig_t*) {
  return make(communicator, size, rank, name_of(id));
}

API ncclResult_t ncclCommInitRankScalable(ncclComm_t* communicator, int size, int rank, int, ncclUniqueId* ids, ncclConfig_t*) {
  return make(communicator, size, rank, name_of(ids[0]));
}

// One process with several devices.
API ncclResult_t ncclCommInitAll(ncclComm_t*, int, const int*) {
  last_error = "the software CUDA device has no communicator of several devices in one process";
  return ncclInvalidUsage;
}

API ncclResult_t ncclCommSplit(ncclComm_t given, int color, int key, ncclComm_t* communicator, ncclConfig_t*) {
  auto& parent = in(given);
  if (!parent.clique) return make(communicator, parent.size, parent.rank, "");
  struct Member {
    int color, key, rank;
  } own{color, key, parent.rank};
  std::vector<Member> members;
  try {
    parent.clique->exchange("split", &own, sizeof own, [&](auto& shown) {
      for (auto* each : shown)
        if (auto& member = *(const Member*)each; member.color == color) members.push_back(member);
    });
  } catch (const CliqueError& error) {
    return failed(error);
  }
  std::string name = parent.clique->name_of_part(color);
  *communicator = nullptr;
  if (color == NCCL_SPLIT_NOCOLOR) return ncclSuccess;
  std::stable_sort(members.begin(), members.end(), [](auto& a, auto& b) { return a.key < b.key; });
  auto place = std::find_if(members.begin(), members.end(), [&](auto& member) { return member.rank == parent.rank; });
  return make(communicator, (int)members.size(), (int)(place - members.begin()), name);
}

API ncclResult_t ncclCommDestroy(ncclComm_t communicator) {
  delete (Communicator*)communicator;
  return ncclSuccess;
}

// What waits in another thread still looks at it: it stays.
API ncclResult_t ncclCommAbort(ncclComm_t communicator) {
  if (in(communicator).clique) in(communicator).clique->abort();
  return ncclSuccess;
}

API ncclResult_t ncclCommCount(const ncclComm_t communicator, int* size) {
  *size = in(communicator).size;
  return ncclSuccess;
}

API ncclResult_t ncclCommUserRank(const ncclComm_t communicator, int* rank) {
  *rank = in(communicator).rank;
  return ncclSuccess;
}

API ncclResult_t ncclGroupStart() {
  group_depth++;
  return ncclSuccess;
}

API ncclResult_t ncclGroupEnd() {
  if (--group_depth) return ncclSuccess;
  run_broadcasts();
  return run_waiting();
}

API ncclResult_t ncclAllGather(const void* from, void* to, size_t count, ncclDataType_t type, ncclComm_t communicator, cudaStream_t) {
  auto& ranks = in(communicator);
  if (ranks.clique) return later([=, &ranks] { gathered(*ranks.clique, "an all-gather", from, to, count, type, -1); });
  size_t bytes = count * reductions::bytes_of(type);
  for (int rank = 0; rank < ranks.size; rank++) memory::copied((char*)to + rank * bytes, from, bytes);
  return ncclSuccess;
}

API ncclResult_t ncclGather(const void* from, void* to, size_t count, ncclDataType_t type, int root, ncclComm_t communicator, cudaStream_t) {
  auto& ranks = in(communicator);
  if (ranks.clique) return later([=, &ranks] { gathered(*ranks.clique, "a gather", from, to, count, type, root); });
  return ncclSuccess;
}

API ncclResult_t ncclBroadcast(
    const void* from, void* to, size_t count, ncclDataType_t type, int root, ncclComm_t communicator, cudaStream_t) {
  auto& ranks = in(communicator);
  if (ranks.clique)
    return later([=, &ranks] {
      const void* mine = root == ranks.rank ? from : nullptr;
      in_pieces(*ranks.clique, "a broadcast from " + std::to_string(root), mine, count, type, [&](auto& shown, size_t begin, size_t piece) {
        memcpy(at(to, begin, type), shown[root], piece * reductions::bytes_of(type));
      });
    });
  broadcasts[&ranks][root].push_back({from, to, count * reductions::bytes_of(type)});
  if (!group_depth) run_broadcasts();
  return ncclSuccess;
}

API ncclResult_t ncclBcast(void* data, size_t count, ncclDataType_t type, int root, ncclComm_t communicator, cudaStream_t stream) {
  return ncclBroadcast(data, data, count, type, root, communicator, stream);
}

API ncclResult_t ncclAllReduce(
    const void* from, void* to, size_t count, ncclDataType_t type, ncclRedOp_t operation, ncclComm_t communicator, cudaStream_t) {
  auto& ranks = in(communicator);
  if (ranks.clique) return later([=, &ranks] { reduced(*ranks.clique, "an all-reduce", from, to, count, type, operation, -1); });
  memory::forget();
  return ncclSuccess;
}

API ncclResult_t ncclReduce(
    const void* from, void* to, size_t count, ncclDataType_t type, ncclRedOp_t operation, int root, ncclComm_t communicator, cudaStream_t) {
  auto& ranks = in(communicator);
  std::string what = "a reduction to " + std::to_string(root);
  if (ranks.clique) return later([=, &ranks] { reduced(*ranks.clique, what, from, to, count, type, operation, root); });
  memory::forget();
  return ncclSuccess;
}

API ncclResult_t ncclReduceScatter(
    const void* from, void* to, size_t count, ncclDataType_t type, ncclRedOp_t operation, ncclComm_t communicator, cudaStream_t) {
  auto& ranks = in(communicator);
  if (ranks.clique)
    return later([=, &ranks] {
      for (int rank = 0; rank < ranks.size; rank++)
        reduced(*ranks.clique, "a reduce-scatter", at(from, rank * count, type), to, count, type, operation, rank);
    });
  memory::forget();
  return ncclSuccess;
}

API ncclResult_t ncclAlltoAll(const void* from, void* to, size_t count, ncclDataType_t type, ncclComm_t communicator, cudaStream_t) {
  auto& ranks = in(communicator);
  if (ranks.clique)
    return later([=, &ranks] {
      for (int rank = 0; rank < ranks.size; rank++)
        gathered(*ranks.clique, "an all-to-all", at(from, rank * count, type), to, count, type, rank);
    });
  memory::forget();
  return ncclSuccess;
}

API ncclResult_t ncclSend(const void* from, size_t count, ncclDataType_t type, int peer, ncclComm_t communicator, cudaStream_t) {
  auto& ranks = in(communicator);
  if (ranks.clique) return later([=, &ranks] { ranks.clique->send(peer, from, count * reductions::bytes_of(type)); });
  return ncclSuccess;
}

API ncclResult_t ncclRecv(void* to, size_t count, ncclDataType_t type, int peer, ncclComm_t communicator, cudaStream_t) {
  auto& ranks = in(communicator);
  if (ranks.clique) return later([=, &ranks] { ranks.clique->receive(peer, to, count * reductions::bytes_of(type)); }, true);
  memory::forget();
  return ncclSuccess;
}

API ncclResult_t ncclCommGetAsyncError(ncclComm_t, ncclResult_t* error) {
  *error = ncclSuccess;
  return ncclSuccess;
}

API ncclResult_t ncclCommRegister(const ncclComm_t, void*, size_t, void** handle) {
  *handle = (void*)1;
  return ncclSuccess;
}

API ncclResult_t ncclMemAlloc(void** address, size_t bytes) {
  return cudaMalloc(address, bytes) ? ncclUnhandledCudaError : ncclSuccess;
}

API ncclResult_t ncclMemFree(void* address) { return cudaFree(address) ? ncclUnhandledCudaError : ncclSuccess; }

// The factor is the host's, or lies in memory that the host reads.
API ncclResult_t ncclRedOpCreatePreMulSum(ncclRedOp_t* operation, void* scalar, ncclDataType_t type, ncclScalarResidence_t, ncclComm_t) {
  *operation = ncclSum;
  if (!values::on()) return ncclSuccess;
  std::lock_guard<std::mutex> guard(operations_lock);
  factors[next_operation] = reductions::factor(scalar, type);
  *operation = (ncclRedOp_t)next_operation++;
  return ncclSuccess;
}

API ncclResult_t ncclRedOpDestroy(ncclRedOp_t operation, ncclComm_t) {
  return ncclSuccess;  // what waits in a group may still want it
}
