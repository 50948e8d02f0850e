// Marks what libuvmsim.so shows to the stand-ins and to tests; everything else in the engine stays
// hidden.
#pragma once

#define UVMSIM_EXPORT __attribute__((visibility("default")))
