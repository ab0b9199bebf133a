"""Defines the programs that use libraries for images and volumes (diffusers, MONAI and others)."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch.nn import functional

from benchmarks.programs.registry import STEPS, Values, program, trained


def _unet() -> torch.nn.Module:
    from diffusers import UNet2DConditionModel

    return UNet2DConditionModel(
        sample_size=16,
        in_channels=4,
        out_channels=4,
        layers_per_block=1,
        block_out_channels=(32, 64),
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
        cross_attention_dim=32,
        attention_head_dim=8,
        norm_num_groups=8,
    )


@program("diffusers")
def diffusion_training() -> Iterator[Values]:
    """A conditional U-Net with a DDPM scheduler."""
    from diffusers import DDPMScheduler

    model, scheduler = _unet(), DDPMScheduler(num_train_timesteps=100)
    compiled = torch.compile(model)
    images, noise, text = torch.randn(2, 4, 16, 16), torch.randn(2, 4, 16, 16), torch.randn(2, 6, 32)
    times = torch.tensor([3, 70])

    def loss() -> torch.Tensor:
        noisy = scheduler.add_noise(images, noise, times)
        return functional.mse_loss(compiled(noisy, times, encoder_hidden_states=text).sample, noise)

    yield from trained(model, loss)


@program("diffusers")
def ddim_sampling() -> Iterator[Values]:
    """A pipeline's loop around a compiled U-Net."""
    from diffusers import DDIMScheduler

    model, scheduler = _unet().eval(), DDIMScheduler(num_train_timesteps=100, clip_sample=True)
    compiled = torch.compile(model)
    text = torch.randn(2, 6, 32)
    for _ in range(STEPS):
        scheduler.set_timesteps(4)
        images = torch.randn(2, 4, 16, 16)
        for time in scheduler.timesteps:
            with torch.no_grad():
                noise = compiled(images, time, encoder_hidden_states=text).sample
            images = scheduler.step(noise, time, images).prev_sample
        yield {"images": images}


@program("diffusers")
def autoencoder() -> Iterator[Values]:
    """A VAE."""
    from diffusers import AutoencoderKL

    model = AutoencoderKL(
        block_out_channels=(16, 32),
        down_block_types=("DownEncoderBlock2D",) * 2,
        norm_num_groups=8,
        up_block_types=("UpDecoderBlock2D",) * 2,
        latent_channels=4,
        sample_size=32,
    ).eval()
    encode, decode = torch.compile(model.encode), torch.compile(model.decode)
    for _ in range(STEPS):
        with torch.no_grad():
            yield {"images": decode(encode(torch.randn(1, 3, 32, 32)).latent_dist.mode()).sample}


@program("diffusers")
def repeated_blocks() -> Iterator[Values]:
    """A Flux with compile_repeated_blocks."""
    from diffusers import FluxTransformer2DModel

    model = FluxTransformer2DModel(
        patch_size=1,
        in_channels=4,
        num_layers=2,
        num_single_layers=2,
        attention_head_dim=16,
        num_attention_heads=2,
        joint_attention_dim=32,
        pooled_projection_dim=32,
        axes_dims_rope=(4, 4, 8),
    ).eval()
    model.compile_repeated_blocks()
    ids, text_ids = torch.zeros(16, 3), torch.zeros(6, 3)
    ids[:, 1] = torch.arange(16)
    for _ in range(STEPS):
        with torch.no_grad():
            answer = model(
                hidden_states=torch.randn(1, 16, 4),
                encoder_hidden_states=torch.randn(1, 6, 32),
                pooled_projections=torch.randn(1, 32),
                timestep=torch.tensor([0.5]),
                img_ids=ids,
                txt_ids=text_ids,
            )
        yield {"sample": answer.sample}


@program("monai")
def monai_unet() -> Iterator[Values]:
    """A U-Net with Dice's loss."""
    from monai.losses import DiceLoss
    from monai.networks.nets import UNet

    model = UNet(spatial_dims=3, in_channels=1, out_channels=2, channels=(8, 16, 32), strides=(2, 2), num_res_units=1)
    compiled, loss = torch.compile(model), DiceLoss(to_onehot_y=True, softmax=True)
    volume, labels = torch.randn(1, 1, 16, 16, 16), torch.randint(0, 2, (1, 1, 16, 16, 16))
    yield from trained(model, lambda: loss(compiled(volume), labels))


@program("monai")
def monai_sliding_window() -> Iterator[Values]:
    """Sliding-window inference."""
    from monai.inferers import sliding_window_inference
    from monai.networks.nets import BasicUNet

    model = BasicUNet(spatial_dims=2, in_channels=1, out_channels=2, features=(8, 8, 16, 16, 32, 8)).eval()
    compiled = torch.compile(model)
    for _ in range(STEPS):
        with torch.no_grad():
            yield {"labels": sliding_window_inference(torch.randn(1, 1, 48, 40), (32, 32), 2, compiled)}


@program("kornia")
def kornia_filters() -> Iterator[Values]:
    """A differentiable pipeline of filters, colours and geometry."""
    import kornia

    gain = torch.nn.Parameter(torch.ones(1))
    model = torch.nn.ParameterList([gain])

    @torch.compile
    def pipeline(images: torch.Tensor) -> torch.Tensor:
        images = kornia.color.rgb_to_hsv(images * gain)
        images = kornia.filters.gaussian_blur2d(images, (5, 5), (1.5, 1.5))
        return kornia.geometry.transform.resize(kornia.filters.sobel(images), (16, 16))

    images = torch.rand(2, 3, 32, 32)
    yield from trained(model, lambda: pipeline(images).square().mean())


@program("vector_quantize_pytorch")
def quantized_autoencoder() -> Iterator[Values]:
    """An autoencoder whose codes are quantized (finite scalar quantization)."""
    from vector_quantize_pytorch import FSQ

    encoder, decoder = torch.nn.Conv2d(3, 3, 4, 4), torch.nn.ConvTranspose2d(3, 3, 4, 4)
    model = torch.nn.ModuleList([encoder, FSQ([8, 5, 5], channel_first=True), decoder])
    images = torch.randn(2, 3, 32, 32)

    @torch.compile
    def loss(images: torch.Tensor) -> torch.Tensor:
        codes, _ = model[1](model[0](images))
        return functional.mse_loss(model[2](codes), images)

    yield from trained(model, lambda: loss(images))


@program("perceiver_pytorch")
def perceiver() -> Iterator[Values]:
    """A Perceiver for images."""
    from perceiver_pytorch import Perceiver

    model = Perceiver(
        input_channels=3,
        input_axis=2,
        num_freq_bands=4,
        max_freq=8.0,
        depth=2,
        num_latents=8,
        latent_dim=32,
        cross_heads=1,
        latent_heads=2,
        cross_dim_head=16,
        latent_dim_head=16,
        num_classes=4,
    )
    compiled = torch.compile(model)
    images, labels = torch.randn(2, 16, 16, 3), torch.tensor([0, 3])
    yield from trained(model, lambda: functional.cross_entropy(compiled(images), labels))


@program("einops")
def einops_mixer() -> Iterator[Values]:
    """Layers and functions."""
    import einops
    from einops.layers.torch import Rearrange, Reduce

    model = torch.nn.Sequential(
        Rearrange("b c (h p) (w q) -> b (h w) (p q c)", p=8, q=8),
        torch.nn.Linear(192, 32),
        torch.nn.GELU(),
        Reduce("b n d -> b d", "mean"),
        torch.nn.Linear(32, 4),
    )
    images, labels = torch.randn(2, 3, 32, 32), torch.tensor([0, 3])

    @torch.compile
    def loss(images: torch.Tensor) -> torch.Tensor:
        half = einops.reduce(images, "b c (h p) (w q) -> b c h w", "max", p=2, q=2)
        whole = einops.repeat(half, "b c h w -> b c (h p) (w q)", p=2, q=2)
        return functional.cross_entropy(model(whole), labels)

    yield from trained(model, lambda: loss(images))
