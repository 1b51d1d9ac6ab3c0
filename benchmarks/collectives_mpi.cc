// A rank of MPI for benchmarks/collectives.py. Calls and sizes are those of collectives_cpu.
// all_reduce and reduce_scatter are MPI_SUM of MPI_FLOAT.
//
// Usage: mpirun -n N collectives_mpi --driver PATH [--longest BYTES] [--bind]
#include <mpi.h>

#include <CLI/CLI.hpp>
#include <string>

#include "benchmarks/round_server.h"

namespace ddprun::benchmarks {
namespace {

class MpiRank final : public MeasuredSystem {
 public:
  MpiRank(int ranks, std::size_t longest) : ranks_(ranks), one_(longest), other_(longest) {}

  std::function<void()> prepare(const Order& order) override {
    const int size = static_cast<int>(order.size(0) / sizeof(float)), share = size / ranks_;
    char *const one = one_.data(), *const other = other_.data();
    if (order.call == "all_reduce") {
      return [=] { MPI_Allreduce(MPI_IN_PLACE, one, size, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD); };
    }
    if (order.call == "broadcast") {
      return [=] { MPI_Bcast(one, size, MPI_FLOAT, 0, MPI_COMM_WORLD); };
    }
    if (order.call == "all_gather") {
      return [=] { MPI_Allgather(one, share, MPI_FLOAT, other, share, MPI_FLOAT, MPI_COMM_WORLD); };
    }
    if (order.call == "reduce_scatter") {
      return
          [=] { MPI_Reduce_scatter_block(one, other, share, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD); };
    }
    if (order.call == "all_to_all") {
      return [=] { MPI_Alltoall(one, share, MPI_FLOAT, other, share, MPI_FLOAT, MPI_COMM_WORLD); };
    }
    if (order.call == "barrier") return [this] { barrier(); };
    return nullptr;
  }

  void barrier() override { MPI_Barrier(MPI_COMM_WORLD); }

 private:
  int ranks_;
  Buffer one_, other_;
};

int benchmark(int argc, char** argv) {
  std::string driver;
  std::size_t longest = std::size_t{100} << 20;
  bool bind = false;
  CLI::App app("A rank of MPI for benchmarks/collectives.py");
  app.add_option("--driver", driver, "the driver's Unix socket")->required();
  app.add_option("--longest", longest, "bytes of a buffer");
  app.add_flag("--bind", bind, "each rank to a core, where mpirun does not");
  CLI11_PARSE(app, argc, argv);

  MPI_Init(nullptr, nullptr);  // an error in MPI ends the program
  int rank = 0, ranks = 1;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  if (bind) bind_to_core(rank);
  MpiRank self(ranks, longest);
  serve_rounds(driver, rank, self);
  MPI_Finalize();
  return 0;
}

}  // namespace
}  // namespace ddprun::benchmarks

int main(int argc, char** argv) { return ddprun::benchmarks::benchmark(argc, argv); }
