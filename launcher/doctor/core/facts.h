// The facts that `ddprun doctor` has found about this host and the network to the other nodes.
// They are plain values. The files of launcher/doctor fill them; launcher/doctor/core/doctor.h
// judges them. Any thread.
//
// A member that could not be determined is empty: nullopt, or a text that says why it failed.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/host_port.h"

namespace ddprun {

// What the command line says about the job.
struct JobRequest {
  bool several_nodes = false;
  int workers_here = 1;
  bool wants_gpus = false;  // --nproc-per-node=gpu
};

// --- names ---------------------------------------------------------------------------------------

// The name service's answer for a name or an address, from any source: /etc/hosts, DNS.
struct LookUp {
  enum class Outcome { kFound, kNotFound, kSilent };  // kSilent: no answer within `took`
  std::string asked;
  Outcome outcome = Outcome::kNotFound;
  Duration took{};
  std::vector<std::string> found;
  std::string why;  // kNotFound
};

// A server of /etc/resolv.conf, asked directly.
struct NameServer {
  enum class Outcome { kAnswered, kFailed, kSilent };
  std::string address;
  Outcome outcome = Outcome::kAnswered;
  Duration took{};
  std::string why;  // kFailed
};

struct NameFacts {
  LookUp own;                       // of this host's name
  bool own_is_here = false;         // one of its addresses is this host's
  bool own_is_loopback = false;     // all of its addresses are loopback
  std::vector<NameServer> servers;  // in the order in which they are asked
  // The names of addresses in use, asked for in PyTorch's form: ::ffff:10.0.0.7.
  std::vector<LookUp> of_addresses;
};

// --- the network ---------------------------------------------------------------------------------

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
  std::string source;  // this host's address towards it, by the kernel's routes; empty: no route
  std::string why;     // kFailed
};

// What answered at the endpoint.
struct ServiceAnswer {
  enum class Outcome {
    kService,    // a rendezvous service of ddprun; as far as can be seen it takes this node
    kWantsTls,   // it requires TLS, and none was given
    kTlsFailed,  // see why
    kWantsKey,   // it requires a key, and none was given
    kRefusesKey,
    kNoLeader,  // a standby, and no service leads
    kOther,     // another program
    kSilent,    // connected, but no answer within `took`
  };
  Outcome outcome = Outcome::kOther;
  Duration took{};
  std::string version;  // empty: it does not say
  std::string host;
  std::optional<Duration> clock_ahead;  // relative to this host's clock; negative: behind
  bool has_proved = false;              // it has proved that it has the same key
  std::string why;                      // kService: that it stands by, if it does
};

// Whether this host could listen at the endpoint.
struct ListenTry {
  bool works = false;
  std::string why;
  std::string holder;  // "python3 (pid 4711)"; empty: unknown
};

struct EndpointFacts {
  std::string option;  // that named it
  HostPort address;
  LookUp look_up;
  bool is_here = false;  // one of its addresses is this host's
  std::vector<ConnectTry> tries;
  std::optional<ServiceAnswer> service;  // if a connection was made
  std::optional<ListenTry> listening;    // if it is here and not served
};

// --rdzv-backend=etcd.
struct EtcdMember {
  HostPort address;
  std::string trouble;  // empty: it answers
  Duration took{};
  std::string version;
  bool has_leader = false;
  std::optional<Duration> clock_ahead = {};  // relative to this host's clock; negative: behind
  std::int64_t size = 0;                     // of its data, in bytes
  std::int64_t quota = 0;                    // of that; 0: not known
};
struct EtcdFacts {
  std::size_t cluster_size = 0;     // number of members that etcd itself has; 0: not known
  std::vector<EtcdMember> members;  // that the command line names
  std::vector<std::string> alarms;
  std::optional<Duration> write_took;  // a durable write; nullopt: see write_trouble
  std::string write_trouble;
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
  std::optional<EtcdFacts> etcd;
  std::vector<EndpointFacts> other_services;  // if the command line names several
  std::optional<PortRange> ephemeral;         // ports that the kernel gives to connections
  std::vector<PortRange> reserved;            // the ports of `ephemeral` that it does not give
  std::optional<PortRangeFacts> ports;
  // NCCL_SOCKET_IFNAME and GLOO_SOCKET_IFNAME, if they are set.
  std::vector<std::pair<std::string, std::string>> interface_variables;
  std::vector<std::string> interface_names;  // of all interfaces
};

// --- this host -----------------------------------------------------------------------------------

struct Space {
  std::string path;
  std::uint64_t total = 0;
  std::uint64_t available = 0;
  std::uint64_t free_inodes = 1;
  std::string why_not_writable;  // empty: it is writable
};

struct SharedMemoryFacts {
  std::string why_missing;  // empty: it exists
  Space space;
  int files = 0;  // files in it, and their total size
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
  bool processes_bind = true;  // false for root with its capabilities
  std::uint64_t own_processes = 0;
  Limit locked_memory;
  bool locked_memory_binds = true;
  std::vector<std::string> rdma_devices;
  Limit address_space;
};

struct CgroupFacts {
  std::string path;  // of this process's group; empty: cgroup v2 is not mounted
  bool can_make_children = false;
  std::vector<std::string> controllers;
  // The narrowest limits of this group and those above it; nullopt: none.
  std::optional<std::uint64_t> pids_max;
  std::uint64_t pids_now = 0;  // in the group with that limit
  std::optional<std::uint64_t> memory_max;
  std::optional<double> cpus;  // from cpu.max, or from the quota of v1
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
  int ptrace_scope = 0;  // of Yama; 0 also without Yama
};

// --- GPUs ----------------------------------------------------------------------------------------

struct GpuFacts {
  int device_files = 0;               // /dev/nvidia0, ...
  int pci_devices = 0;                // of NVIDIA, for display or computing
  std::string kernel_driver_version;  // /proc/driver/nvidia; empty: not loaded
  bool has_library = false;           // libnvidia-ml.so.1
  bool library_hangs = false;         // no answer within the time limit
  std::string library_error;          // empty: it works
  int count = 0;
  std::string driver_version;
  int cuda_version = 0;  // that the driver supports: 13000 for 13.0
  int without_persistence = 0;
  std::optional<std::string> visible;  // CUDA_VISIBLE_DEVICES
  int visible_count = 0;
};

struct NcclLibrary {
  std::string path;     // empty: none
  std::string version;  // "2.28.9"; empty: see why
  std::string why;
  bool by_variable = false;  // found through LD_LIBRARY_PATH
};

struct LibTorchFacts {
  std::string root;     // .../site-packages/torch; empty: none found
  std::string version;  // "2.11.0+cu130"
  std::string cuda;     // "13.0"; empty: built without CUDA
  std::string nccl;     // that its package requires: "2.28.9"; empty: not stated
};

struct NcclFacts {
  bool hangs = false;  // a file system on its search path does not answer
  LibTorchFacts torch;
  NcclLibrary beside_torch;  // nvidia/nccl/lib of the same site-packages
  NcclLibrary of_loader;     // what the loader finds by LD_LIBRARY_PATH and its cache
};

struct DoctorFacts {
  std::string version;  // of ddprun
  std::string host;
  JobRequest job;
  std::string program_error;  // empty: the program was found, or none was given
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
