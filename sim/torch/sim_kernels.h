/* PyTorch's CUDA operators on the simulated device: the C functions between the stand-in libraries
 * and the kernels.
 *
 * libuvmsim_torch.so does not depend on torch and may be loaded into any process. If the process
 * has torch 2.15, it loads libuvmsim_torch_2_15.so, which is built against that minor version. All
 * functions are thread-safe.
 */
#ifndef UVMSIM_SIM_KERNELS_H
#define UVMSIM_SIM_KERNELS_H

#ifdef __cplusplus
extern "C" {
#endif

/* In libuvmsim_torch.so. Installs the kernels once torch is in this process and initialised.
 * Returns 0 until then (call it again), and 1 when it is done: the kernels are installed, or a line
 * on stderr has given the reason why not. Cheap enough for the entry of every call of a runtime; it
 * may be called from anywhere, static initialisers included. */
int uvmsim_kernels_poll(void);

/* In libuvmsim_torch_2_15.so and its siblings. The step of uvmsim_kernels_poll that needs torch;
 * same results. */
int uvmsim_torch_install(void);

#ifdef __cplusplus
}
#endif

#endif /* UVMSIM_SIM_KERNELS_H */
