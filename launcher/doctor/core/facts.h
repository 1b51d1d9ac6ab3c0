// What `ddprun doctor` has seen of this host and of the way to the others: plain values, filled by
// the files of launcher/doctor and judged by launcher/doctor/core/doctor.h. Any thread.
//
// A member that could not be seen is empty (nullopt, or a text that says why it failed).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/host_port.h"

namespace ddprun {

// What the job is to be, as far as the command line says so.
struct JobWish {
  bool several_nodes = false;
  int workers_here = 1;
  bool wants_gpus = false;  // --nproc-per-node=gpu
};

// --- names ------------------------------------------------------------------------------------------

// What the name service made of a name or an address, however it was answered: /etc/hosts, DNS.
struct LookUp {
  enum class Outcome { kFound, kNotFound, kSilent };  // kSilent: not within `took`
  std::string asked;
  Outcome outcome = Outcome::kNotFound;
  Duration took{};
  std::vector<std::string> found;
  std::string why;  // kNotFound
};

// A server of /etc/resolv.conf, asked by itself.
struct NameServer {
  enum class Outcome { kAnswered, kFailed, kSilent };
  std::string address;
  Outcome outcome = Outcome::kAnswered;
  Duration took{};
  std::string why;  // kFailed
};

struct NameFacts {
  LookUp own;                       // of this host's name
  bool own_is_here = false;         // an address of it is one of this host's
  bool own_is_loopback = false;     // all of them are
  std::vector<NameServer> servers;  // in the order in which they are asked
  // The names of addresses in use, asked for as PyTorch does: ::ffff:10.0.0.7.
  std::vector<LookUp> of_addresses;
};

// --- the network ------------------------------------------------------------------------------------

struct NamedAddress {
  std::string interface;
  std::string address;
  friend bool operator==(const NamedAddress&, const NamedAddress&) = default;
};

struct ConnectTry {
  enum class Outcome { kConnected, kRefused, kSilent, kFailed };
  std::string address;  // numeric, without the port
  Outcome outcome = Outcome::kFailed;
  Duration took{};
  std::string source;  // this host's address towards it, as the kernel chooses; empty: no way
  std::string why;     // kFailed
};

// What has answered at the endpoint.
struct ServiceAnswer {
  enum class Outcome {
    kService,    // a rendezvous service of ddprun's; it takes this node as far as can be seen
    kWantsTls,   // and none was given
    kTlsFailed,  // see why
    kWantsKey,   // and none was given
    kRefusesKey,
    kOther,   // it is something else
    kSilent,  // connected, and no answer within `took`
  };
  Outcome outcome = Outcome::kOther;
  Duration took{};
  std::string version;  // empty: it does not say
  std::string host;
  std::optional<Duration> clock_ahead;  // of ours; negative: behind
  bool has_proved = false;              // it has our key
  std::string why;
};

// Whether this host could be the one that listens at the endpoint.
struct ListenTry {
  bool works = false;
  std::string why;
  std::string holder;  // "python3 (pid 4711)"; empty: not known
};

struct EndpointFacts {
  std::string option;  // that named it
  HostPort address;
  LookUp look_up;
  bool is_here = false;  // an address of it is one of this host's
  std::vector<ConnectTry> tries;
  std::optional<ServiceAnswer> service;  // where a connection was made
  std::optional<ListenTry> listening;    // where it is here, and nobody listens
};

// --port-range.
struct PortRangeFacts {
  PortRange range;
  int free = 0;
};

// --local-addr.
struct LocalAddressFacts {
  std::string wanted;
  std::string found;  // numeric; empty: see why
  bool is_here = false;
  std::string why;
};

struct NetworkFacts {
  std::vector<NamedAddress> interfaces;  // up, without loopback and link-local ones
  std::optional<LocalAddressFacts> local;
  std::optional<EndpointFacts> endpoint;
  std::optional<PortRange> ephemeral;  // ports that the kernel gives to connections
  std::vector<PortRange> reserved;     // of these, those that it does not
  std::optional<PortRangeFacts> ports;
  // NCCL_SOCKET_IFNAME, GLOO_SOCKET_IFNAME: those that are set.
  std::vector<std::pair<std::string, std::string>> interface_variables;
  std::vector<std::string> interface_names;  // all there are
};

// --- this host --------------------------------------------------------------------------------------

struct Space {
  std::string path;
  std::uint64_t total = 0;
  std::uint64_t available = 0;
  std::uint64_t free_inodes = 1;
  std::string why_not_writable;  // empty: it is
};

struct SharedMemoryFacts {
  std::string why_missing;  // empty: it is there
  Space space;
  int files = 0;  // in it, and what they hold
  std::uint64_t file_bytes = 0;
};

// kUnlimited: no limit.
inline constexpr std::uint64_t kUnlimited = UINT64_MAX;
struct Limit {
  std::uint64_t soft = kUnlimited;
  std::uint64_t hard = kUnlimited;
};

struct LimitFacts {
  Limit open_files;
  Limit processes;
  bool processes_bind = true;  // not so for root with its capabilities
  std::uint64_t own_processes = 0;
  Limit locked_memory;
  bool locked_memory_binds = true;
  std::vector<std::string> rdma_devices;
  Limit address_space;
};

struct CgroupFacts {
  std::string path;  // of our own in the file system; empty: cgroup v2 is not mounted
  bool can_make_children = false;
  std::vector<std::string> controllers;
  // The narrowest on the way up; nullopt: none.
  std::optional<std::uint64_t> pids_max;
  std::uint64_t pids_now = 0;  // where that limit is
  std::optional<std::uint64_t> memory_max;
  std::optional<double> cpus;  // of cpu.max or the quota of v1
};

struct MachineFacts {
  int usable_cores = 1;
  int online_cores = 1;
  std::uint64_t memory = 0;
  std::uint64_t memory_available = 0;
};

struct ClockFacts {
  std::optional<bool> synchronised;
  std::string source;  // the kernel's clock source
};

struct DebuggerFacts {
  bool has_gdb = false;
  bool has_py_spy = false;
  int ptrace_scope = 0;  // of Yama; 0 also where there is none
};

// --- GPUs -------------------------------------------------------------------------------------------

struct GpuFacts {
  int device_files = 0;               // /dev/nvidia0, ...
  int pci_devices = 0;                // of NVIDIA, for display or computing
  std::string kernel_driver_version;  // /proc/driver/nvidia; empty: not loaded
  bool has_library = false;           // libnvidia-ml.so.1
  bool library_hangs = false;         // no answer within its time
  std::string library_error;          // empty: it works
  int count = 0;
  std::string driver_version;
  int cuda_version = 0;  // that the driver can do: 13000 for 13.0
  int without_persistence = 0;
  std::optional<std::string> visible;  // CUDA_VISIBLE_DEVICES
  int visible_count = 0;
};

struct NcclLibrary {
  std::string path;     // empty: none
  std::string version;  // "2.28.9"; empty: see why
  std::string why;
  bool by_variable = false;  // LD_LIBRARY_PATH leads there
};

struct LibTorchFacts {
  std::string root;     // .../site-packages/torch; empty: none found
  std::string version;  // "2.11.0+cu130"
  std::string cuda;     // "13.0"; empty: it is built without
  std::string nccl;     // that its package asks for: "2.28.9"; empty: it does not say
};

struct NcclFacts {
  bool hangs = false;  // a file system on the way to it has not answered
  LibTorchFacts torch;
  NcclLibrary beside_torch;  // nvidia/nccl/lib of the same site-packages
  NcclLibrary of_loader;     // what the loader finds by LD_LIBRARY_PATH and its cache
};

struct DoctorFacts {
  std::string version;  // of ddprun
  std::string host;
  JobWish job;
  std::string program_error;  // the program cannot be found; empty: it can, or none was given
  NameFacts names;
  NetworkFacts network;
  SharedMemoryFacts shared_memory;
  Space temporary;
  LimitFacts limits;
  CgroupFacts cgroup;
  MachineFacts machine;
  ClockFacts clock;
  DebuggerFacts debuggers;
  GpuFacts gpus;
  NcclFacts nccl;
};

}  // namespace ddprun
