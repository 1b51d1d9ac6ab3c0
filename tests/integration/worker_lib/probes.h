// The probes: small programs that tests in Python start, as parts of the program worker_probe. Each
// run() gets its name as argv[0] and its own arguments, and returns an exit code. The comment of
// each source says what the probe does.
#pragma once

namespace checkpoint_memory_probe {
int run(int argc, char** argv);
}
namespace collectives_probe {
int run(int argc, char** argv);
}
namespace ddp_probe {
int run(int argc, char** argv);
}
namespace optimizers_probe {
int run(int argc, char** argv);
}
namespace state_file_probe {
int run(int argc, char** argv);
}
