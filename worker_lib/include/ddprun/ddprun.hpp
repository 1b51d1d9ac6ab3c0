// Everything a training program needs: #include <ddprun/ddprun.hpp>.
#pragma once

#include "ddprun/error.h"  // first: it says where the compiler's C++ is too old

#include "ddprun/adadelta.h"
#include "ddprun/checkpoint.h"
#include "ddprun/clip_grad_norm.h"
#include "ddprun/context.h"
#include "ddprun/data_parallel.h"
#include "ddprun/error.h"
#include "ddprun/lr_scheduler.h"
#include "ddprun/metrics.h"
#include "ddprun/objects.h"
#include "ddprun/process_group.h"
#include "ddprun/sampler.h"
#include "ddprun/spawn.h"
#include "ddprun/state_file.h"
#include "ddprun/step_statistics.h"
#include "ddprun/store.h"
#include "ddprun/summary_tensors.h"
#include "ddprun/summary_writer.h"
#include "ddprun/sync_batch_norm.h"
#include "ddprun/zero_optimizer.h"
