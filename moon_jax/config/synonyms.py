"""Names that other programs give to flags and to values of flags.

They are those of Flower, NIID-Bench, the code released with MOON, PFLlib, LEAF
and FedML, and abbreviations; only names with one clear meaning. Error messages
suggest the flag (`moon_jax.config.suggest`); the names are not accepted.
"""

# Flag -> names of it elsewhere, with _ for -, in lower case.
_FLAGS = {
    'dataset': 'data dataset_name data_name',
    'data_dir': 'datadir dataset_dir dataset_path data_path data_root root '
                'data_cache_dir datapath',
    'num_clients': 'clients n_clients nclients n_parties num_parties num_users '
                   'n_users total_clients client_num_in_total num_supernodes '
                   'num_agents num_partitions n_nodes num_nodes',
    'partition': 'data_partition partition_method partition_type partitioner '
                 'split split_type data_split distribution',
    'beta': 'alpha dirichlet_alpha dirichlet_beta dir_alpha dir_beta '
            'partition_alpha concentration hetero_alpha dirichlet',
    'shards_per_client': 'shards num_shards n_shards shard_per_user '
                         'classes_per_client num_classes_per_client '
                         'n_class_per_client class_per_client',
    'partition_seed': 'split_seed data_seed',
    'participation': 'fraction frac sample sample_fraction sampling_fraction '
                     'client_fraction fraction_fit fraction_train join_ratio '
                     'participation_rate participation_ratio sample_rate '
                     'sampling_rate sampling_ratio sample_ratio client_ratio '
                     'fraction_clients clients_fraction',
    'dropout_rate': 'drop_percent drop_rate straggler_rate client_dropout '
                    'client_drop_rate client_dropout_rate',
    'validation_fraction': 'val_fraction val_split valid_fraction val_ratio '
                           'validation_split',
    'train_examples': 'train_samples num_train_examples max_train_samples',
    'label_noise': 'noise_rate label_noise_rate',
    'model': 'arch net network backbone model_name architecture model_type',
    'norm': 'norm_layer normalization norm_type',
    'projection_head': 'use_project_head use_projection_head',
    'projection_dim': 'out_dim proj_dim projection_size',
    'init_from': 'load_model_file pretrained init_model init_weights '
                 'pretrained_model init_checkpoint load_from',
    'algorithm': 'alg algo method strategy federated_optimizer fl_algorithm '
                 'algorithm_name aggregator',
    'temperature': 'temp',
    'num_negatives': 'model_buffer_size buffer_size pool_size negatives',
    'aggregation': 'aggregation_method',
    'server_optimizer': 'server_opt global_optimizer',
    'server_learning_rate': 'server_lr global_lr global_learning_rate '
                            'lr_server',
    'local_epochs': 'epochs epoch num_epochs n_epochs local_epoch local_ep '
                    'num_local_epochs client_epochs local_max_epoch',
    'batch_size': 'bs bsz lbs local_bs local_batch_size train_batch_size '
                  'minibatch_size',
    'optimizer': 'optim opt client_optimizer local_optimizer',
    'learning_rate': 'lr local_lr client_lr local_learning_rate '
                     'client_learning_rate init_lr base_lr lr_client',
    'learning_rate_schedule': 'lr_schedule lr_scheduler scheduler',
    'learning_rate_decay': 'lr_decay lr_gamma gamma lr_decay_rate',
    'decay_rounds': 'lr_step_size lr_decay_rounds lr_decay_steps',
    'warmup_rounds': 'warmup lr_warmup',
    'weight_decay': 'wd reg l2_reg',
    'gradient_clip': 'max_grad_norm grad_clip clip_grad clip_grad_norm '
                     'gradient_clip_val',
    'augment': 'augmentation data_augmentation data_aug',
    'num_rounds': 'rounds round n_rounds comm_round comm_rounds '
                  'communication_rounds num_comm_rounds num_server_rounds '
                  'server_rounds global_rounds global_round global_epochs '
                  'total_rounds max_rounds communication_round',
    'early_stopping': 'patience',
    'seed': 'random_seed init_seed manual_seed rng_seed',
    'eval_every': 'eval_gap eval_interval eval_freq eval_frequency test_every '
                  'test_interval frequency_of_the_test test_freq '
                  'evaluate_every',
    'metrics': 'metric',
    'workdir': 'output_dir out_dir outdir output output_path save_dir '
               'log_dir logdir logs_dir modeldir results_dir result_dir '
               'exp_dir save_path save_folder_name log_path run_dir '
               'experiment_dir',
    'checkpoint_every': 'save_every save_freq save_interval ckpt_every '
                        'checkpoint_interval checkpoint_freq',
    'keep_best': 'save_best',
    'quiet': 'silent',
    'dp_clip': 'dp_clip_norm dp_clipping dp_max_norm dp_l2_clip',
    'dp_noise_multiplier': 'noise_multiplier dp_noise dp_sigma',
    'dp_delta': 'delta target_delta',
    'lanes': 'num_parallel_clients parallel_clients num_parallel',
    'flagfile': 'config config_file cfg conf config_path',
}

# Name -> flag.
FLAGS = {name.lower(): flag for flag, names in _FLAGS.items()
         for name in names.split()}

_DEVICES = ('JAX uses all GPUs that it finds; set CUDA_VISIBLE_DEVICES=0 to '
            'use the first, or JAX_PLATFORMS=cpu to use none')
_SAMPLED = ('give --participation, the fraction of clients per round: with '
            '--num_clients=100, --participation=0.1 samples 10')

# Name -> advice, if no single flag has this meaning.
ADVICE = {
    **dict.fromkeys(
        'gpu gpus gpu_id gpu_ids use_gpu num_gpus cuda use_cuda no_cuda device '
        'device_id devices_id cuda_id'.split(), _DEVICES),
    **dict.fromkeys(
        'clients_per_round num_clients_per_round client_num_per_round '
        'n_clients_per_round sampled_clients clients_sampled num_participants '
        'num_sampled_clients users_per_round'.split(), _SAMPLED),
    **dict.fromkeys('resume auto_resume resume_from continue'.split(),
                    'the same command resumes a run'),
    **dict.fromkeys('iid is_iid'.split(), 'give --partition=iid'),
    **dict.fromkeys('non_iid noniid niid'.split(),
                    'give --partition=dirichlet --beta=0.5'),
    **dict.fromkeys(
        'fp16 bf16 amp use_amp half mixed_precision'.split(),
        'give --dtype=bfloat16, or --precision=tf32'),
    **dict.fromkeys(
        'epsilon target_epsilon eps dp_epsilon'.split(),
        'give --dp_noise_multiplier; the run prints its epsilon'),
    **{name: f'give --loggers={logger}'
       for logger, names in {
           'wandb': 'wandb use_wandb log_wandb with_wandb',
           'tensorboard': 'tensorboard use_tensorboard log_tensorboard tb',
           'mlflow': 'mlflow use_mlflow', 'aim': 'aim use_aim',
           'csv': 'csv log_csv'}.items()
       for name in names.split()},
}

# Flag -> name of a value elsewhere -> the value, or the flags that set it. The
# names have letters and digits only.
VALUES = {
    'dataset': {
        'fmnist': 'fashion_mnist', 'fashion': 'fashion_mnist',
        'tiny': 'tiny_imagenet', 'tinyimagenet200': 'tiny_imagenet',
        'imagenet200': 'tiny_imagenet', 'wdbc': 'breast_cancer'},
    'partition': {
        **dict.fromkeys(
            'noniid niid dir lda label labelskew labeldir noniidlabeldir '
            'hetero heterodir heterogeneous labeldistribution'.split(),
            'dirichlet'),
        **dict.fromkeys('homo homogeneous uniform random'.split(), 'iid'),
        **dict.fromkeys(
            'shard sharding pathological pat noniidlabel1 noniidlabel2 '
            'noniidlabel3'.split(), 'shards'),
        **dict.fromkeys(
            'iiddiffquantity quantityskew sizeskew unbalanced'.split(),
            'quantity'),
        **dict.fromkeys('noise featureskew gaussian'.split(), 'feature_noise'),
        **dict.fromkeys('real byuser bywriter user writer'.split(),
                        'natural')},
    'model': {
        **dict.fromkeys('cnn simplecnnmnist smallcnn lenet'.split(),
                        'simple_cnn'),
        **dict.fromkeys('resnet50cifar10 resnet50cifar100'.split(), 'resnet50'),
        **dict.fromkeys('lstm rnn charrnn stackedlstm'.split(), 'char_lstm'),
        **dict.fromkeys('dnn fc fcn'.split(), 'mlp')},
    'algorithm': {
        **dict.fromkeys('local localonly localtraining standalone'.split(),
                        'solo'),
        **dict.fromkeys('central allin pooled'.split(), 'centralized'),
        'fedavgm': '--algorithm=fedavg --server_momentum=0.9',
        **{name: f'--algorithm=fedavg --server_optimizer={optimizer} '
                 '--server_learning_rate=0.01'
           for name, optimizer in (
               ('fedadam', 'adam'), ('fedopt', 'adam'), ('fedyogi', 'yogi'),
               ('fedadagrad', 'adagrad'))}},
    'aggregation': dict.fromkeys(('avg', 'mean', 'fedavg'), 'average'),
    'weighting': {
        **dict.fromkeys('samples size datasize numexamples'.split(),
                        'examples'),
        'equal': 'uniform'},
    'norm': {'bn': 'batch', 'batchnorm': 'batch', 'gn': 'group',
             'groupnorm': 'group'},
    'dtype': {'bf16': 'bfloat16', 'fp32': 'float32', 'f32': 'float32'},
    'precision': {'bf16': 'bfloat16', 'fp32': 'highest', 'float32': 'highest'},
    'learning_rate_schedule': {
        'none': 'constant', 'cos': 'cosine', 'cosineannealing': 'cosine',
        'steplr': 'step'},
    'client_state': {'ram': 'memory', 'file': 'disk'},
}

# Algorithm that is not built in -> the page that defines it.
PAGES = {
    **dict.fromkeys(('feddyn', 'feddecorr'), 'docs/user_algorithm.md'),
    **dict.fromkeys(('ditto', 'apfl', 'fedper', 'fedrep'),
                    'docs/personalized.md'),
}
