# A GPT that trains on a laptop's CPU.
eval_interval = 250
eval_iters = 4
batch_size = 12
block_size = 64
n_layer = 4
n_head = 4
n_embd = 128
max_iters = 2000
lr_decay_iters = 2000
device = "cpu"
dtype = "float32"
